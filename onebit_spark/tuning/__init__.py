"""Cross-validation: ``grid`` lists the settings to compare and chooses one, ``cross_validation`` fits every fold."""
