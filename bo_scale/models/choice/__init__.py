"""The model that the data ask for, chosen by evidence."""
