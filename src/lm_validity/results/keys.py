"""The keys of each report's summary.json and the row of each: one table, `KEYS`.

`KEYS` has a line for each number of each report's summary.json:

    path                                           quantity         unit n of    intervals over
    kendall_tau.{protocol}.mean                    tau_mean         tau  models  models,interval_clustered:families
    kendall_tau.{protocol}.by_benchmark.{subject}  tau_with_others  tau  models  models

A line that is indented goes on from the last one that is not.

A path names keys, joined by points. `{name}` stands for any text, a whole key or part of one, and that text is where
the number belongs: `subject`, `other` and `protocol` are columns of their own, other names go into `conditions`.
`[a,b=subject]` is a list of records, told apart by their fields `a` and `b`, of which `b` is the subject; `[#place]` is
a list by place, from 1. `n of`: the key of the number of models, tasks or items that the number rests on, in the same
record or in one around it.

`intervals over` says what the number's intervals are over. The key of an interval stands in the place of the last key
of the path that is a name: `interval` for a `mean` or `value`, else `name_interval`. Another key is written before a
colon; a level other than 0.95 after an @. `=` before it: the path is that of an interval itself, of the quantity with
the same subject, other, protocol and conditions or, if there is none, of no value. `name=text` after that sets a
condition.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

INTERVALS = {
    "models": "models",
    "families": "families of models, each as a whole",
    "benchmarks": "benchmarks, as a sample of a population of benchmarks",
    "categories": "categories of benchmarks, as a sample of a population of categories",
    "items": "test items, or scores by their standard errors",
    "missing_cells": "the scores that are missing",
    "checkpoints": "checkpoints, or other trainings where there are any",
    "differences": "the differences between models, within their noise",
    "coin_flips": "the order of the models, as though coins decided it",
    "weights": "the weights of the overall score",
    "pairs": "benchmarks, each model compared with every other one",
    "convention": "nothing: it is a setting",
    "tasks": "tasks",
    "subsamples": "subsamples",
    "middle_subsamples": "subsamples: the middle half of them",
    "posterior": "the posterior",
}
LEVEL = 0.95

_CHECKS = """
standard_errors[benchmark=subject,code]
  .scores                                     standard_errors_unused            scores       of           -
  .of                                         standard_errors                   scores       -            -
  .ratio                                      standard_error_ratio              ratio        scores       -
"""

_CONSISTENCY = """
ranking_consistency.{subject}
  .value  consistency  share  -  checkpoints,item_interval:items
  .coin_flip_interval                         consistency_coin_flips            share        -            =coin_flips
  .coin_flip_p                                consistency_coin_flip_p           probability  -            -
  .lasts                                      consistency_lasts                 yes_or_no    -            -
  .with_last                                  consistency_with_last             share        -            -
  .by_size.{size}                             consistency_of_size               share        -            -
ranking_consistency.{subject}.pairs[size,first,second]
  .value                                      consistency_of_pair               share        base_checkpoints -
  .base_gap                                   consistency_base_gap              score        base_checkpoints -
  .with_last                                  consistency_of_pair_with_last     share        base_checkpoints -
  .base_checkpoints                           consistency_base_checkpoints      checkpoints  -            -
  .later_checkpoints                          consistency_later_checkpoints     checkpoints  -            -
"""


KEYS: Mapping[str, str] = {
    "agreement": """
incomplete.{protocol}
  .cells                                      cells                             cells        -            -
  .missing                                    cells_missing                     cells        -            -
  .unplanned                                  cells_unplanned                   cells        -            -
  .by_scores                                  cells_by_scores                   cells        -            -
  .kendall_tau.comparisons                    comparisons                       comparisons  -            -
  .kendall_tau.mean                           tau_pooled                        tau          comparisons  models
  .kendall_tau.by_benchmark.{subject}         tau_with_others_pooled            tau          -            -
  .kendall_tau.assisted                       tau_assisted                      tau          comparisons  models
  .kendall_tau.assisted_by_benchmark.{subject} tau_with_others_assisted          tau          -            -
  .kendall_tau.differ                         tau_pooled_and_assisted_differ    yes_or_no    -            -
  .ranks.{subject}.rank  rank_predicted  rank  -  interval:missing_cells
  .trust.source                               predictions_checked_by            text         -            -
  .trust.cells                                predictions_checked               cells        -            -
  .trust.coverage                             predictions_coverage              share        cells        -
  .trust.widening                             predictions_widening              factor       cells        -
  .trust.hardly_measured[#place]              family_hardly_measured            text         -            -
""",
    "signal": """
selection                                     selection                         text         -            -
conventions
  .convention                                 convention                        text         -            -
  .ties                                       ties                              text         -            -
  .normalisation                              normalisation_convention          text         -            -
  .weights.{part}                             weight                            share        -            -
  .windows_b.base                             window_base                       billion_tokens -            =convention
  .windows_b.later                            window_later                      billion_tokens -            =convention
  .windows_b.relative                         windows_relative                  yes_or_no    -            -
  .resamples                                  resamples                         resamples    -            -
models.{model}.{subject}
  .monotonicity                               monotonicity                      index        checkpoints  items
  .rank_correlation                           rank_correlation                  correlation  checkpoints  -
  .autocorrelation                            autocorrelation                   index        checkpoints  items
  .signal_quality                             signal_quality                    index        checkpoints  items
  .signal_quality_null_p                      signal_quality_null_p             probability  checkpoints  -
  .signal_quality_null_mean                   signal_quality_null_mean          index        checkpoints  -
  .signal_quality_null_95                     signal_quality_null_95            index        checkpoints  -
  .signal_quality_walk_p                      signal_quality_walk_p             probability  checkpoints  -
  .noise_free_quality                         noise_free_quality                index        checkpoints  -
  .reliability                                reliability                       share        checkpoints  -
  .above_chance_from_b                        above_chance_from                 billion_tokens checkpoints  -
  .checkpoints                                checkpoints                       checkpoints  -            -
  .net_rise                                   net_rise                          score        checkpoints  -
  .degenerate                                 degenerate                        yes_or_no    -            -
benchmarks.{subject}
  .signal_quality                             signal_quality_mean               index        models       items
  .signal_quality_null_p                      signal_quality_mean_null_p        probability  models       -
  .signal_quality_walk_p                      signal_quality_mean_walk_p        probability  models       -
  .steady                                     steady                            yes_or_no    models       -
  .rank_correlation                           rank_correlation_mean             correlation  models       -
  .direction_assumed                          direction_assumed                 yes_or_no    -            -
  .signal_quality_by_size.{size}              signal_quality_of_size            index        -            items
  .signal_quality_by_items.{items}            signal_quality_at_items           index        -            -
  .signal_quality_by_errors.{items}           signal_quality_at_items_by_errors index        -            -
  .noise_free_quality                         noise_free_quality_mean           index        models       items
  .models                                     models                            models       -            -
  .items                                      items                             items        -            -
  .chance                                     chance                            score        -            -
  .models_above_chance                        above_chance                      models       models       -
  .above_chance_from_b                        above_chance_from_mean            billion_tokens models       -
  .interval_source                            interval_source                   text         -            -
  .training_noise                             training_noise                    score        reruns       -
  .reruns                                     reruns                            trainings    -            -
  .separable_at_end                           separable_at_end                  pairs        -            -
  .common.aligned_by                          aligned_by                        text         -            -
  .common.points                              common_points                     points       -            -
  .common.interpolated                        common_points_interpolated        points       points       -
  .common.last_b                              common_points_last                billion_tokens -            -
  .common.at_end                              common_points_at_end              yes_or_no    -            -
"""
    + _CONSISTENCY
    + _CONSISTENCY.replace("{subject}", "{subject}.fitted").replace(" consistency", " fitted_consistency")
    + """
compliance.{subject}
  .value                                      compliance                        share        -            items
  .null_p                                     compliance_null_p                 probability  -            -
  .raw_gap                                    compliance_raw_gap                score        -            items
  .normalisation                              compliance_normalisation          text         -            -
  .normalisations.{normalisation}             compliance_under                  share        -            -
  .pairs[#pair][#place]                       compliance_model                  text         -            -
  .checkpoints[#pair]                         compliance_checkpoints            checkpoints  -            -
overall.{subject}                             overall                           index        -            items
overall_null_p.{subject}                      overall_null_p                    probability  -            -
weight_sensitivity.{subject}
  .share_first                                share_of_weights_first            share        -            -
  .rank_interval                              rank_over_weights                 rank         -            =weights
ranking.{subject}
  .models[#place]                             ranked_model                      text         -            -
  .tokens_b[#point]                           point_tokens                      billion_tokens -            -
  .interpolated[#point]                       point_interpolated                models       -            -
  .agreement_with_last[#point]                agreement_with_last               tau          -            -
  .stable_from_b  stable_from  billion_tokens  pairs  stable_from_interval_b:differences
  .nearly_stable_tau                          nearly_stable_tau                 tau          -            -
  .nearly_stable_from_b  nearly_stable_from  billion_tokens  pairs  nearly_stable_from_interval_b:differences
  .pairs                                      pairs                             pairs        -            -
  .separable_pairs                            separable_pairs                   pairs        pairs        -
  .settled_from_b  settled_from  billion_tokens  separable_pairs  settled_from_interval_b:differences
  .size_pairs                                 size_pairs                        pairs        -            -
  .size_order_share[#point]                   size_order_share                  share        size_pairs   -
  .size_gap[#point]                           size_gap                          score        size_pairs   -
  .separated_from_b                           separated_from                    billion_tokens -            -
criteria.{subject}
  .finetasks.monotonicity                     finetasks_monotonicity            correlation  -            -
  .finetasks.monotonicity_passes              finetasks_monotonicity_passes     yes_or_no    -            -
  .finetasks.signal_to_noise                  finetasks_signal_to_noise         ratio        -            -
  .finetasks.signal_to_noise_passes           finetasks_signal_to_noise_passes  yes_or_no    -            -
  .finetasks.non_randomness                   finetasks_non_randomness          ratio        -            -
  .finetasks.non_randomness_passes            finetasks_non_randomness_passes   yes_or_no    -            -
  .finetasks.ordering_consistency             finetasks_ordering_consistency    tau          -            -
  .signal_and_noise.signal                    signal                            ratio        -            -
  .signal_and_noise.noise                     noise                             ratio        -            -
  .signal_and_noise.noise_from                noise_from                        text         -            -
  .signal_and_noise.signal_to_noise           signal_to_noise                   ratio        -            checkpoints
  .signal_and_noise.step_direction            step_direction                    ratio        -            -
  .signal_and_noise.total_variation           total_variation                   ratio        -            -
  .decision_accuracy.middle_to_last           decision_accuracy_middle_to_last  share        -            models
  .decision_accuracy.smallest_to_largest      decision_accuracy_smallest_to_largest share        -            models
item_metrics.{subject}.{metric}
  .signal_quality                             signal_quality_by_metric          index        -            interval:items
  .less_accuracy                              signal_quality_less_accuracy      index        -            items
filters.{subject}[filter,score,design]
  .unfiltered                                 filter_unfiltered                 index        items        -
  .in_sample                                  filter_in_sample                  index        items        -
  .held_out                                   filter_held_out                   index        items        -
  .optimism_gap                               filter_optimism_gap               index        items        -
  .control_mean                               filter_control_mean               index        items        -
  .control_high                               filter_control_high               index        items        -
  .p                                          filter_p                          probability  items        -
  .useful                                     filter_useful                     yes_or_no    -            -
  .items                                      filter_items                      items        -            -
  .kept_in_sample                             filter_kept_in_sample             items        items        -
  .kept_by_fold.{fold}                        filter_kept_by_fold               items        items        -
  .length_dependence                          filter_length_dependence          correlation  items        -
  .per_item_score_ratio                       filter_per_item_score_ratio       ratio        items        -
subgroups.{subject}[kind,name]
  .items                                      subgroup_items                    items        -            -
  .signal_quality                             subgroup_signal_quality           index        items        interval:items
  .last_score                                 subgroup_last_score               score        items        -
  .last_log_likelihood_per_token              subgroup_last_log_likelihood_per_token nats         items        -
"""
    + _CHECKS,
    "screening": """
thresholds
  .training_examples                          threshold_training_examples       texts        -            -
  .unimproved_share                           threshold_unimproved_share        share        -            -
  .negative_share                             threshold_negative_share          share        -            -
benchmarks[benchmark=subject]
  .kept                                       kept                              yes_or_no    -            -
  .reason                                     dropped_because                   text         -            -
  .training_examples                          training_examples                 texts        -            -
  .models                                     models                            models       -            -
  .not_improved                               models_not_improved               models       models       -
  .others                                     others                            benchmarks   -            -
  .negative_agreement                         others_with_negative_tau          benchmarks   others       -
  .mean_tau                                   tau_with_kept                     tau          others       -
  .category                                   category                          text         -            -
  .output_type                                output_type                       text         -            -
""",
}


class Line(NamedTuple):
    """A key with its row; `over` is empty where it is a value's. `conditions`: those that the path
    does not say."""

    path: str
    quantity: str
    unit: str
    counted: str
    over: str
    level: float
    conditions: Mapping[str, str]


def lines_of(study: str) -> list[Line]:
    """The keys of a study, in the order of `KEYS`, each value's followed by those of its intervals."""
    lines, begin = [], ""
    for text in filter(str.strip, KEYS[study].split("\n")):
        path, *columns = text.split()
        if text.startswith(" "):
            path = begin + path
        else:
            begin = path
        if not columns:
            continue
        quantity, unit, counted, intervals, *words = ("" if word == "-" else word for word in columns)
        given_places, without_value = dict(word.split("=") for word in words), intervals.startswith("=")
        if not without_value:
            lines.append(Line(path, quantity, unit, counted, "", LEVEL, given_places))
        for interval in filter(None, intervals.removeprefix("=").split(",")):
            key, _, over = interval.rpartition(":")
            over, _, level = over.partition("@")
            own_path = path if without_value else _beside(path, key)
            lines.append(Line(own_path, quantity, unit, "", over, float(level or LEVEL), given_places))
    return lines


def _beside(path: str, key: str) -> str:
    """The path with another last key: `key`, or without one the usual one of an interval."""
    return re.sub(
        r"(\w+)((\.\{\w+\}|\[[^\]]*\]|\.\d)*)$",
        lambda last: (key or ("interval" if last[1] in ("mean", "value") else f"{last[1]}_interval")) + last[2],
        path,
    )
