"""What is drawn: widgets that know no probe and no kernel."""
