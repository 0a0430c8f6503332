"""What is wrong with a capsule network: each metric a pure function, with an accumulator that streams it."""

from capsella.analysis.activity import Activity, ActivityResult, ActivitySweep, activity, activity_sweep
from capsella.analysis.compactness import Compactness, compactness
from capsella.analysis.cost import Cost, routing_cost
from capsella.analysis.couplings import (
    CouplingChange,
    CouplingEntropy,
    Dynamics,
    Entropy,
    RoutingDynamics,
    coupling_change,
    coupling_entropy,
    routing_dynamics,
)
from capsella.analysis.doctor import Diagnosis, diagnose
from capsella.analysis.gradients import LayerGradients, Life, Revivals, gradient_norms
from capsella.analysis.layers import Adapter, ForeignLayers, OwnLayers, Seen, observe, seen_layer, tapped
from capsella.analysis.moments import Moments
from capsella.analysis.negation import NegationGap, negated, negation_gap
from capsella.analysis.parse_tree import ParseTree, TreeStatistics, TreeStatisticsOf, parse_trees
from capsella.analysis.swaps import RoutingMatters, RoutingSwaps, route_with, routing_matters
from capsella.analysis.symptoms import SYMPTOMS, Symptom
from capsella.analysis.viewpoint import VIEWS, ViewpointCorrelation, chance_correlation, seen_from, viewpoint_correlation

__all__ = [
    "SYMPTOMS",
    "VIEWS",
    "Activity",
    "ActivityResult",
    "ActivitySweep",
    "Adapter",
    "Compactness",
    "Cost",
    "CouplingChange",
    "CouplingEntropy",
    "Diagnosis",
    "Dynamics",
    "Entropy",
    "ForeignLayers",
    "LayerGradients",
    "Life",
    "Moments",
    "NegationGap",
    "OwnLayers",
    "ParseTree",
    "Revivals",
    "RoutingDynamics",
    "RoutingMatters",
    "RoutingSwaps",
    "Seen",
    "Symptom",
    "TreeStatistics",
    "TreeStatisticsOf",
    "ViewpointCorrelation",
    "activity",
    "activity_sweep",
    "chance_correlation",
    "compactness",
    "coupling_change",
    "coupling_entropy",
    "diagnose",
    "gradient_norms",
    "negated",
    "negation_gap",
    "observe",
    "parse_trees",
    "route_with",
    "routing_cost",
    "routing_dynamics",
    "routing_matters",
    "seen_from",
    "seen_layer",
    "tapped",
    "viewpoint_correlation",
]
