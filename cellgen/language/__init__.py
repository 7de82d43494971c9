"""What an author writes: values, shapes, the operator table, declarations. Knows no program."""
