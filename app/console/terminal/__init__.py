"""The console on its terminal: capabilities, themes, and how often it is drawn."""
