"""The whole question in one look: ten clean labels per class, and many more of unknown quality."""
