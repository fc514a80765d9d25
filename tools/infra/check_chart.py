"""Renders the chart and holds the manifests against the schemas of Kubernetes and of the kinds that KEDA and Prometheus'
operator bring. For tools/infra/chart.test.ts, in a virtual environment with helm-python-sdk (helm's own engine),
kubernetes-validate and PyYAML:

    check_chart.py CHART [--values FILE]… [--release NAME] [--namespace NAME] [--crds FOLDER]… [--render]

Prints the manifests with --render, else one problem a line; exit code 1 where there is one. A field that a schema does
not name is a problem: a cluster would drop it without a word."""

import argparse
import glob
import sys

import helm_python
import jsonschema
import kubernetes_validate
import yaml

KUBERNETES = "1.37.0"


class Loader(yaml.CSafeLoader):
    """Enumerations of CRDs have a bare "=", which YAML 1.1 calls a value of its own."""


Loader.add_constructor("tag:yaml.org,2002:value", lambda loader, node: node.value)


def merged(into, more):
    for key, value in more.items():
        both = isinstance(value, dict) and isinstance(into.get(key), dict)
        into[key] = merged(into[key], value) if both else value
    return into


def closed(schema):
    """The schema with every object closed that names its fields."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: closed(value) for key, value in schema.items()}
    is_open = result.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in result
    if isinstance(result.get("properties"), dict) and "type" in result and not is_open:
        result["additionalProperties"] = False
    return result


def schemas_in(folders):
    found = {}
    for path in [path for folder in folders for path in glob.glob(f"{folder}/*.yaml")]:
        with open(path, encoding="utf-8") as file:
            crd = yaml.load(file, Loader)
        for version in crd["spec"]["versions"]:
            key = f"{crd['spec']['group']}/{version['name']}", crd["spec"]["names"]["kind"]
            schema = closed(version["schema"]["openAPIV3Schema"])
            schema["properties"].update({name: {} for name in ("apiVersion", "kind", "metadata")})
            found[key] = schema
    return found


def problem_of(manifest, schemas):
    kind = manifest["apiVersion"], manifest["kind"]
    if kind in schemas:
        errors = jsonschema.Draft7Validator(schemas[kind]).iter_errors(manifest)
        return "; ".join(f"{'.'.join(map(str, error.path))}: {error.message}" for error in errors) or None
    try:
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    except kubernetes_validate.SchemaNotFoundError:
        return "there is no schema of this kind: give its folder with --crds"
    except kubernetes_validate.ValidationError as error:
        return f"{'.'.join(map(str, error.path))}: {error.message}"
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("chart")
    parser.add_argument("--values", action="append", default=[])
    parser.add_argument("--release", default="shoal")
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--crds", action="append", default=[])
    parser.add_argument("--render", action="store_true")
    asked = parser.parse_args()
    values = {}
    for path in asked.values:
        with open(path, encoding="utf-8") as file:
            merged(values, yaml.safe_load(file) or {})
    try:
        with helm_python.Chart.load(asked.chart) as chart:
            rendered = chart.render(values, name=asked.release, namespace=asked.namespace)
    except helm_python.HelmError as error:
        print(f"helm refuses it: {error}")
        return 1
    texts = [text for path, text in sorted(rendered.items()) if path.endswith(".yaml")]
    if asked.render:
        print("".join(f"---\n{text.strip()}\n" for text in texts if text.strip()), end="")
        return 0
    schemas = schemas_in(asked.crds)
    problems = []
    manifests = [each for text in texts for each in yaml.safe_load_all(text) if each]
    for manifest in manifests:
        problem = problem_of(manifest, schemas)
        if problem is not None:
            problems.append(f"{manifest['kind']} {manifest['metadata']['name']}: {problem}")
    print("\n".join(problems) or f"{len(manifests)} manifests are as the schemas of Kubernetes {KUBERNETES} want them")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
