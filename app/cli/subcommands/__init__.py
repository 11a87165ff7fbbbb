"""The subcommands of the command line; help texts of their options stand in `app.cli`."""
