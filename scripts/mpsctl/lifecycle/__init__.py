"""What the unit, a timer and an operator have done to one instance."""
