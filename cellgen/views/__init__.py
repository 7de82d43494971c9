"""What people look at: equations, plans, reasons, pictures, catalogues."""
