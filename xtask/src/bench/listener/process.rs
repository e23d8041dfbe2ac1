//! Kernel statistics of the broker and of this process.

use anyhow::{Context, Result};
use std::fs;

/// CPU seconds used so far, in steps of the kernel's tick (10 ms).
#[derive(Clone, Copy)]
pub struct Cpu {
    pub broker_s: f64,
    pub own_s: f64,
}

impl Cpu {
    pub fn now(broker: u32) -> Result<Cpu> {
        Ok(Cpu { broker_s: seconds(&broker.to_string())?, own_s: seconds("self")? })
    }
}

fn seconds(process: &str) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let (_, fields) = text.rsplit_once(") ").context("/proc/PID/stat")?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    // SAFETY: takes no pointers.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    let (user, system): (f64, f64) = (fields[11].parse()?, fields[12].parse()?);
    Ok((user + system) / ticks)
}

/// Proportional memory that belongs to no file, in bytes.
pub fn anonymous(broker: u32) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{broker}/smaps_rollup"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss_Anon:")).context("Pss_Anon")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib * 1024)
}
