"""Where runs take place: in this process, in several processes of this machine, or on a cluster through Ray."""
