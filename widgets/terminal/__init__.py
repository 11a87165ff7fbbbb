"""Terminal output and input. Only this package and the table use Textual's private parts."""
