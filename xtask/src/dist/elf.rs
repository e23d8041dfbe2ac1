//! Reader of the ELF parts that describe a binary's requirements on its machine. Layout: System V ABI, chapters 4 and
//! 5, and the GNU extension for symbol versions (`DT_VERNEED`).

use anyhow::{Context, Result, bail, ensure};

/// Requirements of a 64-bit, little-endian program.
#[derive(Debug, PartialEq, Eq)]
pub struct Elf {
    /// Name of the machine as in `std::env::consts::ARCH`.
    pub machine: &'static str,
    /// Path of the dynamic loader; `None` for a static program.
    pub interpreter: Option<String>,
    /// Names of shared libraries.
    pub needed: Vec<String>,
    /// Oldest sufficient glibc: the largest version that a symbol requires. `None` when no symbol requires one.
    pub glibc: Option<(u32, u32)>,
}

/// Libraries of every Linux with glibc.
const LIBRARIES: [&str; 4] = ["libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux"];

impl Elf {
    /// Parses a program.
    ///
    /// # Errors
    /// Another format, or a truncated file.
    pub fn read(bytes: &[u8]) -> Result<Self> {
        let file = Bytes(bytes);
        ensure!(bytes.starts_with(b"\x7fELF\x02\x01"), "not a 64-bit little-endian ELF file");
        let machine = match file.u16(18)? {
            62 => "x86_64",
            183 => "aarch64",
            243 => "riscv64",
            other => bail!("machine {other} of the ELF list is not one that is shipped"),
        };
        let (mut interpreter, mut dynamic, mut loaded) = (None, None, vec![]);
        let (headers, size, count) = (file.u64(32)?, u64::from(file.u16(54)?), u64::from(file.u16(56)?));
        for at in (0..count).map(|i| headers + i * size) {
            let (offset, address, length) = (file.u64(at + 8)?, file.u64(at + 16)?, file.u64(at + 32)?);
            match file.u32(at)? {
                1 => loaded.push((address, offset, length)),
                2 => dynamic = Some((offset, length)),
                3 => interpreter = Some(file.text(offset)?),
                _ => {}
            }
        }
        let mut elf = Self { machine, interpreter, needed: vec![], glibc: None };
        if let Some((offset, length)) = dynamic {
            elf.read_dynamic(&file, offset, length, &loaded)?;
        }
        Ok(elf)
    }

    fn read_dynamic(
        &mut self,
        file: &Bytes,
        offset: u64,
        length: u64,
        loaded: &[(u64, u64, u64)],
    ) -> Result<()> {
        let (mut needed, mut strings, mut versions) = (vec![], None, None);
        for at in (offset..offset.saturating_add(length)).step_by(16) {
            let value = file.u64(at + 8)?;
            match file.u64(at)? {
                0 => break,
                1 => needed.push(value),
                5 => strings = Some(file_offset(value, loaded)?),
                0x6fff_fffe => versions = Some(file_offset(value, loaded)?),
                _ => {}
            }
        }
        let Some(strings) = strings else { return Ok(()) };
        for name in needed {
            self.needed.push(file.text(strings + name)?);
        }
        // Two chained lists: libraries, and for each the versions of it; links are distances from the record, 0 ends.
        let mut library = versions;
        while let Some(at) = library {
            let mut version = at + u64::from(file.u32(at + 8)?);
            for _ in 0..file.u16(at + 2)? {
                let name = file.text(strings + u64::from(file.u32(version + 8)?))?;
                self.glibc = self.glibc.max(glibc_version(&name));
                version += u64::from(file.u32(version + 12)?);
            }
            library = match file.u32(at + 12)? {
                0 => None,
                next => Some(at + u64::from(next)),
            };
        }
        Ok(())
    }

    /// Checks the required libraries.
    ///
    /// # Errors
    /// An uncommon library: the build links it dynamically by mistake.
    pub fn check_libraries(&self) -> Result<()> {
        for name in &self.needed {
            ensure!(
                LIBRARIES.iter().any(|known| name.starts_with(known)),
                "the binary needs {name}, which is not on every machine: link it statically or leave it out"
            );
        }
        Ok(())
    }

    /// Name of the machine in Debian and in container images.
    pub fn architecture(&self) -> &'static str {
        match self.machine {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            // Both call it riscv64.
            machine => machine,
        }
    }

    /// Describes for people how it is linked.
    pub fn linking(&self) -> String {
        match (&self.interpreter, self.glibc) {
            (None, _) => "static".to_owned(),
            (Some(_), Some((major, minor))) => {
                format!("needs glibc {major}.{minor} or newer ({})", self.needed.join(", "))
            }
            (Some(interpreter), None) => format!("needs {interpreter} ({})", self.needed.join(", ")),
        }
    }
}

/// Parses a symbol version: `GLIBC_2.34` is 2.34, `GLIBC_2.2.5` is 2.2.
fn glibc_version(name: &str) -> Option<(u32, u32)> {
    let mut parts = name.strip_prefix("GLIBC_")?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Offset in the file of an address of the running program.
fn file_offset(address: u64, loaded: &[(u64, u64, u64)]) -> Result<u64> {
    let segment =
        loaded.iter().find(|(start, _, length)| (*start..start.saturating_add(*length)).contains(&address));
    let (start, offset, _) = segment.with_context(|| format!("address {address:#x} is in no segment"))?;
    Ok(offset + (address - start))
}

/// Numbers and texts at offsets, each of them checked.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn get<const N: usize>(&self, at: u64) -> Result<[u8; N]> {
        let at = usize::try_from(at)?;
        let bytes = at.checked_add(N).and_then(|end| self.0.get(at..end));
        Ok(bytes.with_context(|| format!("the file ends before {at:#x}"))?.try_into().expect("N bytes"))
    }

    fn u16(&self, at: u64) -> Result<u16> {
        self.get(at).map(u16::from_le_bytes)
    }

    fn u32(&self, at: u64) -> Result<u32> {
        self.get(at).map(u32::from_le_bytes)
    }

    fn u64(&self, at: u64) -> Result<u64> {
        self.get(at).map(u64::from_le_bytes)
    }

    fn text(&self, at: u64) -> Result<String> {
        let rest =
            self.0.get(usize::try_from(at)?..).with_context(|| format!("the file ends before {at:#x}"))?;
        let end = rest.iter().position(|byte| *byte == 0).context("a text without an end")?;
        Ok(String::from_utf8(rest[..end].to_vec())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Vec<u8> {
        std::fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    /// A test binary is a program of this machine, linked like all programs here.
    #[test]
    fn this_program_needs_a_loader_and_a_c_library() {
        let elf = Elf::read(&own()).unwrap();
        assert_eq!(elf.machine, std::env::consts::ARCH);
        if cfg!(target_env = "gnu") && cfg!(not(target_feature = "crt-static")) {
            assert!(elf.interpreter.as_deref().unwrap().contains("ld-linux"), "{elf:?}");
            assert!(elf.needed.iter().any(|name| name == "libc.so.6"), "{elf:?}");
            assert!(elf.glibc.unwrap() >= (2, 17), "{elf:?}");
            assert!(elf.linking().starts_with("needs glibc 2."), "{}", elf.linking());
        }
    }

    #[test]
    fn a_truncated_file_is_an_error_and_not_a_panic() {
        let whole = own();
        for length in [0, 4, 18, 40, 63, 64, 100, 600, 4096] {
            assert!(Elf::read(&whole[..length]).is_err(), "{length}");
        }
        assert!(Elf::read(b"#!/bin/sh\n").is_err());
    }

    #[test]
    fn versions_are_numbers() {
        assert_eq!(glibc_version("GLIBC_2.2.5"), Some((2, 2)));
        assert_eq!(glibc_version("GLIBC_2.34"), Some((2, 34)));
        assert_eq!(glibc_version("GLIBC_PRIVATE"), None);
        assert_eq!(glibc_version("GCC_3.0"), None);
        assert!(glibc_version("GLIBC_2.9") < glibc_version("GLIBC_2.34"));
    }

    #[test]
    fn an_uncommon_library_is_refused() {
        let mut elf =
            Elf { machine: "x86_64", interpreter: None, needed: vec!["libc.so.6".into()], glibc: None };
        elf.check_libraries().unwrap();
        elf.needed.push("libssl.so.3".into());
        assert!(elf.check_libraries().unwrap_err().to_string().contains("libssl.so.3"));
    }
}
