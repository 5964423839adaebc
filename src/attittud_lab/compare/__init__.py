"""The same job with several strategies and paired seeds, and the decision that follows."""
