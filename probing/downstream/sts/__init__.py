"""Semantic textual similarity: how alike are two sentences?"""
