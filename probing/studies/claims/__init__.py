"""The study `reproduce`: claims of papers, what is measured of each, and the verdict."""
