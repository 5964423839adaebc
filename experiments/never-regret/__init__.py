"""Does one ever regret `eta="auto"`? Pairs of tasks of which some help, some do nothing and some destroy."""
