//! Metrics as single numbers, named as Prometheus' text form names them.

use std::collections::BTreeMap;

use openjet_proto::control::MetricSample;
use prometheus::proto::{Metric, MetricFamily, MetricType};

/// The numbers of one metric.
pub(super) fn of(family: &MetricFamily) -> Vec<MetricSample> {
    let name = family.name();
    let mut out = Vec::new();
    for metric in family.get_metric() {
        let mut add = |suffix: &str, bound: Option<f64>, value: f64| {
            let mut labels = labels(metric);
            if let Some(bound) = bound {
                labels.insert("le".to_owned(), if bound.is_finite() { bound.to_string() } else { "+Inf".to_owned() });
            }
            out.push(MetricSample { name: format!("{name}{suffix}"), labels, value });
        };
        match family.get_field_type() {
            MetricType::COUNTER => add("", None, metric.get_counter().get_value()),
            MetricType::HISTOGRAM => {
                let histogram = metric.get_histogram();
                for bucket in histogram.get_bucket() {
                    add("_bucket", Some(bucket.upper_bound()), bucket.cumulative_count() as f64);
                }
                add("_bucket", Some(f64::INFINITY), histogram.get_sample_count() as f64);
                add("_sum", None, histogram.get_sample_sum());
                add("_count", None, histogram.get_sample_count() as f64);
            }
            _ => add("", None, metric.get_gauge().get_value()),
        }
    }
    out
}

fn labels(metric: &Metric) -> BTreeMap<String, String> {
    metric.get_label().iter().map(|label| (label.name().to_owned(), label.value().to_owned())).collect()
}
