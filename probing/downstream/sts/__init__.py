"""Semantic textual similarity: how similar in meaning are two sentences?"""
