"""Where runs take place: in this process, in several processes, or on a cluster through Ray."""
