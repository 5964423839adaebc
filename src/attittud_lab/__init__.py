"""Data, models and training loops behind the command line. They use only public names of the library."""
