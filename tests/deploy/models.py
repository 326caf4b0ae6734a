"""Prints the JSON Schemas of the custom resources that have models on PyPI."""

import json

from cloudcoil.models.keda.v1alpha1 import ScaledObject, TriggerAuthentication
from cloudcoil.models.prometheus_operator.v1 import PrometheusRule, ServiceMonitor

models = (ScaledObject, TriggerAuthentication, ServiceMonitor, PrometheusRule)
print(json.dumps({model.__name__: model.model_json_schema(by_alias=True) for model in models}))
