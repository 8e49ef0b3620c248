# SPDX-License-Identifier: Apache-2.0
"""A soft cap as Transformer Engine's users write one: callbacks of the graph style on an object, of which the backward
uses a node that the forward kept."""


class SoftCap:
    def forward(self, graph, score, tensors):
        self.scaled = graph.div(a=score, b=tensors["cap"])
        return graph.mul(a=graph.tanh(input=self.scaled), b=tensors["cap"])

    def backward(self, graph, dscore, tensors):
        inner = graph.tanh_backward(loss=graph.mul(a=dscore, b=tensors["cap"]), input=self.scaled)
        return graph.div(a=inner, b=tensors["cap"])
