"""Linear functionals of a function and what is inferred from them: actions on data, bases of a variational GP."""
