"""The command line ``eks-ray-train``: one module a command, each with ``add_parser(subparsers)`` and ``run(args) -> int``.

Modules import nothing heavy when they are loaded (boto3, kubernetes, urllib3 and Ray come inside functions), so that
``--help`` answers at once. Errors are raised; only ``__main__`` turns them into text and exit codes.
"""
