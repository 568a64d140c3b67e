"""Claims of papers: what each says, what is measured of it, and the verdict."""
