"""Result tables: their columns are declared once, and their files, types, headings, terms and documentation follow."""
