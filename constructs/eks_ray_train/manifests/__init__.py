"""Kubernetes manifests as pure functions to plain dicts: no CDK import, no clock, no environment.

Strings and numbers may be CDK tokens: they pass through and are never looked into (``tokens.is_token`` only tells them
apart, so that rules about values step round them).
"""
