"""What a job may say: fields, files, overrides, and complaints with a line number."""
