"""`helm install` and `helm template` by helm's own engine and client, for tools/infra/cluster.test.ts, in a virtual
environment with helm-python-sdk and PyYAML; the cluster is KUBECONFIG's:

    helm_of_python.py install|template NAME CHART [--namespace NAME] [--values FILE]… [--set KEY=VALUE]…
        [--dry-run=server]

Prints what was made, or the manifests; exit code 1 with helm's reason where it or the cluster refuses."""

import argparse
import sys

import helm_python
import yaml


def merged(into, more):
    for key, value in more.items():
        both = isinstance(value, dict) and isinstance(into.get(key), dict)
        into[key] = merged(into[key], value) if both else value
    return into


def values_of(asked):
    values = {}
    for path in asked.values:
        with open(path, encoding="utf-8") as file:
            merged(values, yaml.safe_load(file) or {})
    for expression in asked.set:
        merged(values, helm_python.parse_set_string(expression))
    return values


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["install", "template"])
    parser.add_argument("name")
    parser.add_argument("chart")
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--values", action="append", default=[])
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--dry-run", choices=["client", "server"])
    asked = parser.parse_args()
    dry_run = "client" if asked.command == "template" else asked.dry_run
    try:
        with helm_python.Config(namespace=asked.namespace) as cluster:
            made = cluster.install(
                asked.chart, asked.name, values_of(asked), namespace=asked.namespace, dry_run=dry_run
            )
    except helm_python.HelmError as error:
        print(f"helm refuses it: {error}", file=sys.stderr)
        return 1
    print(made["manifest"] if asked.command == "template" else f"{asked.name} is installed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
