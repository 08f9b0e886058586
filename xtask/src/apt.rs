//! Debian's packages on this machine.

use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::run::{Result, run, succeeds};

/// Serializes our threads: apt fails if its lock is taken.
static ONE_AT_A_TIME: Mutex<bool> = Mutex::new(false);

/// Whether packages can be installed here.
pub(crate) fn is_usable() -> bool {
    is_root() && succeeds(Command::new("apt-get").arg("--version"))
}

pub(crate) fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// Installs packages.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    let mut updated = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    eprintln!("xtask: installing {}", packages.join(" "));
    if !*updated {
        run(&mut apt_get(&["update", "-qq"]))?;
        *updated = true;
    }
    let install = ["install", "-y", "-qq", "--no-install-recommends"];
    run(apt_get(&install).args(packages))
}

fn apt_get(arguments: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    // Waits for a package manager that is already running.
    command.env("DEBIAN_FRONTEND", "noninteractive").args(["-o", "DPkg::Lock::Timeout=300"]).args(arguments);
    // Standard output is reserved for the task's result.
    command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
    command
}

/// The host's settings for reaching Debian's packages: proxies, timeouts, checks.
pub(crate) fn acquire_options() -> String {
    let dump = Command::new("apt-config").arg("dump").output();
    dump.map(|output| acquire_lines(&String::from_utf8_lossy(&output.stdout))).unwrap_or_default()
}

fn acquire_lines(dump: &str) -> String {
    // The other entries of this tree are apt's own tables.
    let tables = ["IndexTargets", "Changelogs", "CompressionTypes", "GzipIndexes", "Languages", "cdrom"];
    let mut kept = String::new();
    for line in dump.lines() {
        let Some(option) = line.strip_prefix("Acquire::") else { continue };
        if !tables.iter().any(|table| option.starts_with(table)) {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

/// Debian's mirror in the host's sources, if the host runs Debian.
pub(crate) fn mirror() -> Option<String> {
    let folder = std::fs::read_dir("/etc/apt/sources.list.d").ok();
    let files = folder.into_iter().flatten().flatten().map(|entry| entry.path());
    let files = files.filter(|path| path.extension().is_some_and(|kind| kind == "list" || kind == "sources"));
    std::iter::once("/etc/apt/sources.list".into())
        .chain(files)
        .filter_map(|path| std::fs::read_to_string(path).ok())
        .find_map(|text| mirror_in(&text))
}

/// The first address of a main archive: in both forms of a source it is a word that ends in `/debian`.
fn mirror_in(sources: &str) -> Option<String> {
    let lines = sources.lines().map(str::trim);
    let mut words = lines
        .filter(|line| line.starts_with("deb ") || line.starts_with("URIs:"))
        .flat_map(str::split_whitespace);
    words
        .find(|word| {
            (word.starts_with("http://") || word.starts_with("https://"))
                && word.trim_end_matches('/').ends_with("/debian")
        })
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrors_are_found_in_both_formats() {
        let one_line =
            "# deb http://old.example/debian x main\ndeb [arch=amd64] http://mirror.example/debian/ x main\n";
        assert_eq!(mirror_in(one_line).as_deref(), Some("http://mirror.example/debian/"));
        let stanza = "Types: deb\nURIs: https://other.example/pkg https://mirror.example/debian\nSuites: x\n";
        assert_eq!(mirror_in(stanza).as_deref(), Some("https://mirror.example/debian"));
    }

    #[test]
    fn other_archives_are_ignored() {
        let others = "deb http://mirror.example/debian-security x main\ndeb http://mirror.example/ubuntu y main\n\
                      deb-src http://mirror.example/debian x main\ndeb cdrom:[disc]/debian x main\n";
        assert_eq!(mirror_in(others), None);
    }

    #[test]
    fn only_the_settings_for_reaching_packages_are_kept() {
        let dump = "APT::Architecture \"amd64\";\nAcquire \"\";\nAcquire::http::Proxy \"http://proxy.example:1\";\n\
                    Acquire::IndexTargets::deb::Packages \"\";\nAcquire::Check-Date \"false\";\nDPkg::Post-Invoke:: \"x\";\n";
        let kept = "Acquire::http::Proxy \"http://proxy.example:1\";\nAcquire::Check-Date \"false\";\n";
        assert_eq!(acquire_lines(dump), kept);
    }
}
