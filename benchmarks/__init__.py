"""What a step costs: ATTITTUD, the plain multitask step and other libraries on the same models and
data.
"""
