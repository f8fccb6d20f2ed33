//! A plan as people read it.

use std::fmt;

use super::{MemoryPlan, Part};

/// Bytes in MiB, up.
fn mib(bytes: usize) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |name: &str, width: usize| format!("{name:width$}");
        let line = |part: &Part| format!("  {} {:>12}  {}", name(part.name, 16), mib(part.bytes), part.detail);
        writeln!(f, "memory of the GPU")?;
        for part in &self.parts {
            writeln!(f, "{}", line(part).trim_end())?;
        }
        writeln!(f, "  {} {:>12}", name("total", 16), mib(self.total))?;
        if let Some(available) = self.available {
            let (word, rest) = match available.checked_sub(self.total) {
                Some(left) => ("left", left),
                None => ("missing", self.total - available),
            };
            writeln!(f, "  {} {:>12}", name("there is", 16), mib(available))?;
            writeln!(f, "  {} {:>12}", name(word, 16), mib(rest))?;
        }
        if let Some(pool) = self.largest_pool {
            writeln!(f, "  {} {pool:>12}  tokens", name("largest pool", 16))?;
        }
        writeln!(f, "memory of the host")?;
        for part in &self.host {
            writeln!(f, "{}", line(part).trim_end())?;
        }
        Ok(())
    }
}
