"""Data, models and training loops behind the command line; they use the library as anybody would."""
