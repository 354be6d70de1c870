"""Capacity logic shared by the deploy-time handler and the command line.

This folder *is* the Lambda asset: standard library and boto3 only, relative imports only, no other module of the
library. Clients come in by argument (``aws.Aws``); only ``handler.py`` and the command line create boto3 clients.
"""
