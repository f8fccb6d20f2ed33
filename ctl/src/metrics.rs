//! `openjetctl metrics`.

use std::io::Write;

use openjet_proto::control::MetricSample;

use crate::client::Client;
use crate::failure::Failure;
use crate::text;

/// Prints every number of the metrics, or those whose name contains `part`.
pub(crate) fn run(client: &Client, part: Option<&str>, json: bool, out: &mut Vec<u8>) -> Result<(), Failure> {
    let mut samples: Vec<MetricSample> = client.get("/v1/metrics")?;
    samples.retain(|sample| part.is_none_or(|part| sample.name.contains(part)));
    if json {
        return text::json(&samples, out);
    }
    for MetricSample { name, labels, value } in samples {
        let labels: Vec<_> = labels.iter().map(|(label, value)| format!("{label}={value:?}")).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        writeln!(out, "{name}{labels} {value}")?;
    }
    Ok(())
}
