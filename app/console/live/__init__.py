"""Live state of the console: builders of views, frames and the timeline."""
