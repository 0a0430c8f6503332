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
    live_dynamics,
    routing_dynamics,
)
from capsella.analysis.doctor import Diagnosis, diagnose
from capsella.analysis.factors import FACTORS, FactorCompactness, FactorScore, factor_compactness, factor_vectors, seen_along
from capsella.analysis.gradients import GradientNorms, LayerGradients, Life, Revivals, gradient_norms
from capsella.analysis.layers import Adapter, ForeignLayers, OwnLayers, Seen, observe, seen_layer, tapped
from capsella.analysis.moments import Moments
from capsella.analysis.negation import NegationGap, negated, negation_gap
from capsella.analysis.parse_tree import ParseTree, TreeStatistics, TreeStatisticsOf, parse_trees
from capsella.analysis.records import read_record
from capsella.analysis.swaps import RoutingMatters, RoutingSwaps, route_with, routing_matters
from capsella.analysis.symptoms import SYMPTOMS, Symptom
from capsella.analysis.training import over_training
from capsella.analysis.viewpoint import VIEWS, ViewpointCorrelation, chance_correlation, seen_from, viewpoint_correlation

__all__ = [
    "FACTORS",
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
    "FactorCompactness",
    "FactorScore",
    "ForeignLayers",
    "GradientNorms",
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
    "factor_compactness",
    "factor_vectors",
    "gradient_norms",
    "live_dynamics",
    "negated",
    "negation_gap",
    "observe",
    "over_training",
    "parse_trees",
    "read_record",
    "route_with",
    "routing_cost",
    "routing_dynamics",
    "routing_matters",
    "seen_along",
    "seen_from",
    "seen_layer",
    "tapped",
    "viewpoint_correlation",
]
