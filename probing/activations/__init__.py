"""Reads activations that other tools have written: which format a file or folder is, and its arrays by layer.

Each format is one small file; `formats` lists them. Rows stay on the disk until they are asked for, where the format
allows.
"""
