"""Generated cells: readable C, its headers and its Python interface. `cellgen build` writes them."""
