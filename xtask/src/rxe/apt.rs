//! Debian's packages, by a configuration of apt of our own: other lists, another cache, other sources than the machine's. Neither
//! `/etc/apt` nor what dpkg knows of this machine changes, and no package is installed: they are downloaded and unpacked.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{Trouble, within};
use crate::command;

/// After so long, packages that the lists name may have left the mirror.
const LISTS_AGE: Duration = Duration::from_secs(24 * 60 * 60);
/// Seconds for a call of apt; a kernel is 120 MB.
const BOUND: u64 = 15 * 60;
/// Who has signed Debian's archives.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Where kernels are, whatever this machine's release: the newest, and Linux 6.1.
pub(crate) const KERNELS: [&str; 2] = ["trixie-backports", "bookworm"];

/// apt, with everything it writes in one directory.
#[derive(Debug)]
pub(crate) struct Apt {
    dir: PathBuf,
}

/// A source of packages the machine has been set up with.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Source {
    uri: String,
    suite: String,
}

impl Apt {
    /// Touches nothing until packages are asked for.
    pub(crate) fn new(work: &Path) -> Self {
        Self { dir: work.join("apt") }
    }

    /// Downloads these packages, and what they need that this machine has not, into `into`. `suite` is preferred: a release of this
    /// machine's Debian when it begins with `-`.
    pub(crate) fn download_with_dependencies(
        &self,
        suite: &str,
        packages: &[&str],
        into: &Path,
    ) -> Result<(), Trouble> {
        let codename = self.refresh()?;
        let partial = into.join("partial");
        std::fs::create_dir_all(&partial).map_err(|error| Trouble::file(&partial, error))?;
        let suite = if suite.starts_with('-') { codename + suite } else { suite.to_owned() };
        let mut command = self.apt("apt-get");
        // Without locks, as nothing is installed: it needs no root then.
        command.args(["-o", "Debug::NoLocking=true"]);
        command.arg("-o").arg(format!("Dir::Cache::archives={}", into.display()));
        command.args(["install", "--download-only", "--yes", "--no-remove", "--no-upgrade"]);
        command.args(["--no-install-recommends", "--target-release", &suite]).args(packages);
        self.run(&mut command, &format!("apt-get install --download-only {}", packages.join(" "))).map(drop)
    }

    /// Downloads these packages alone into `into`; `/suite` may follow their names.
    pub(crate) fn download(&self, packages: &[String], into: &Path) -> Result<(), Trouble> {
        self.refresh()?;
        std::fs::create_dir_all(into).map_err(|error| Trouble::file(into, error))?;
        let mut command = self.apt("apt-get");
        command.current_dir(into).arg("download").args(packages);
        self.run(&mut command, &format!("apt-get download {}", packages.join(" "))).map(drop)
    }

    /// The packages that a package depends on.
    pub(crate) fn depends(&self, package: &str) -> Result<Vec<String>, Trouble> {
        self.refresh()?;
        let output = self.run(
            self.apt("apt-cache").args(["depends", "--important", package]),
            &format!("apt-cache depends {package}"),
        )?;
        Ok(depended(&output))
    }

    /// Reads the mirror's lists if they are old; the name of this machine's release.
    fn refresh(&self) -> Result<String, Trouble> {
        let (codename, sources) = self.sources()?;
        let [conf, list, stamp] = ["apt.conf", "sources.list", "updated"].map(|name| self.dir.join(name));
        for dir in ["lists/partial", "cache/archives/partial"] {
            let dir = self.dir.join(dir);
            std::fs::create_dir_all(&dir).map_err(|error| Trouble::file(&dir, error))?;
        }
        let write =
            |path: &Path, text: &str| std::fs::write(path, text).map_err(|error| Trouble::file(path, error));
        write(&conf, &configuration(&self.dir))?;
        let age = std::fs::metadata(&stamp).ok().and_then(|stamp| stamp.modified().ok()?.elapsed().ok());
        if age.is_some_and(|age| age < LISTS_AGE)
            && std::fs::read_to_string(&list).is_ok_and(|text| text == sources)
        {
            return Ok(codename);
        }
        // Until the lists are those of these sources, none are fresh.
        let _ = std::fs::remove_file(&stamp);
        write(&list, &sources)?;
        self.run(self.apt("apt-get").args(["update", "--error-on=any"]), "apt-get update")?;
        write(&stamp, "")?;
        Ok(codename)
    }

    /// This machine's release, and our own list of sources on the mirror it uses.
    fn sources(&self) -> Result<(String, String), Trouble> {
        let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
        let Some(codename) = debian(&release) else {
            let why = "this is no Debian, whose packages the guest is made of — run it on Debian 12";
            return Err(Trouble::Lacking(why.to_owned()));
        };
        let targets = command::output(
            "apt-get",
            &["indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"],
        );
        let targets =
            targets.ok_or_else(|| Trouble::Failed("apt-get indextargets: apt is not in order".to_owned()))?;
        let Some(sources) = sources(&codename, &configured(&targets), Path::new(KEYRING).exists()) else {
            let why = format!("apt has no source of {codename} — add Debian's to /etc/apt/sources.list.d");
            return Err(Trouble::Lacking(why));
        };
        Ok((codename, sources))
    }

    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("-c").arg(self.dir.join("apt.conf")).stdin(Stdio::null());
        command.env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive");
        command
    }

    fn run(&self, command: &mut Command, what: &str) -> Result<String, Trouble> {
        let path = self.dir.join("log");
        let log = File::options().create(true).append(true).open(&path);
        let mut log = log.map_err(|error| Trouble::file(&path, error))?;
        let ended = command::run(command, &mut log, within(BOUND), &mut |_| {});
        if ended.ok {
            return Ok(ended.output);
        }
        if let Some(sign) = unreachable(&ended.output) {
            let dir = self.dir.parent().unwrap_or(&self.dir).display();
            let remedy = "let it reach the mirror that apt is set up with";
            return Err(Trouble::Lacking(format!(
                "{what}: {sign} — {remedy}, or bring {dir} from a machine that did"
            )));
        }
        let why = ended.output.lines().rfind(|line| line.starts_with("E: ")).unwrap_or(&ended.how);
        Err(Trouble::Failed(format!("{what}: {why}; all of it: {}", path.display())))
    }
}

/// Unpacks all packages of a directory; the directory is there when all are unpacked.
pub(crate) fn unpack(packages: &Path, into: &Path) -> Result<(), Trouble> {
    let mut unfinished = into.as_os_str().to_owned();
    unfinished.push(".unpacking");
    let unfinished = PathBuf::from(unfinished);
    remove(&unfinished)?;
    std::fs::create_dir_all(&unfinished).map_err(|error| Trouble::file(&unfinished, error))?;
    let files = std::fs::read_dir(packages).map_err(|error| Trouble::file(packages, error))?;
    let mut any = false;
    for package in files.flatten().map(|file| file.path()) {
        if package.extension().is_none_or(|extension| extension != "deb") {
            continue;
        }
        any = true;
        let unpacked = Command::new("dpkg-deb").arg("-x").args([&package, &unfinished]).output();
        let unpacked = unpacked.map_err(|error| Trouble::Failed(format!("dpkg-deb: {error}")))?;
        if !unpacked.status.success() {
            return Err(Trouble::file(&package, String::from_utf8_lossy(&unpacked.stderr).trim()));
        }
    }
    if !any {
        return Err(Trouble::file(packages, "apt has downloaded nothing"));
    }
    remove(into)?;
    std::fs::rename(&unfinished, into).map_err(|error| Trouble::file(into, error))
}

/// Removes a directory that may not be there.
pub(crate) fn remove(dir: &Path) -> Result<(), Trouble> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Trouble::file(dir, error)),
        _ => Ok(()),
    }
}

/// Read after the machine's configuration, as that may name a proxy. Its commands that follow an update stay out.
fn configuration(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        "Dir::Etc::sourcelist \"{dir}/sources.list\";\n\
         Dir::Etc::sourceparts \"/dev/null\";\n\
         Dir::Etc::preferences \"/dev/null\";\n\
         Dir::Etc::preferencesparts \"/dev/null\";\n\
         Dir::State::lists \"{dir}/lists\";\n\
         Dir::Cache \"{dir}/cache\";\n\
         Dir::Cache::pkgcache \"pkgcache.bin\";\n\
         Dir::Cache::srcpkgcache \"srcpkgcache.bin\";\n\
         #clear APT::Update::Pre-Invoke;\n\
         #clear APT::Update::Post-Invoke;\n\
         #clear APT::Update::Post-Invoke-Success;\n\
         #clear Acquire::IndexTargets::deb::DEP-11;\n\
         #clear Acquire::IndexTargets::deb::Contents-deb;\n\
         Acquire::Languages \"none\";\n\
         Acquire::Retries \"3\";\n\
         Acquire::http::Timeout \"30\";\n\
         Acquire::https::Timeout \"30\";\n\
         APT::Sandbox::User \"root\";\n"
    )
}

/// The release's name, if it is Debian.
fn debian(os_release: &str) -> Option<String> {
    let field = |name: &str| os_release.lines().find_map(|line| line.strip_prefix(name));
    let codename = field("VERSION_CODENAME=")?.trim_matches('"');
    (field("ID=")?.trim_matches('"') == "debian" && !codename.is_empty()).then(|| codename.to_owned())
}

/// Lines `URI SUITE`.
fn configured(targets: &str) -> Vec<Source> {
    let pairs = targets.lines().filter_map(|line| line.split_once(' '));
    pairs.map(|(uri, suite)| Source { uri: uri.to_owned(), suite: suite.to_owned() }).collect()
}

/// Our list: on the mirror of the release, with its updates and backports, and the suites of [`KERNELS`].
fn sources(codename: &str, configured: &[Source], keyring: bool) -> Option<String> {
    let mirror = &configured.iter().find(|source| source.suite == codename)?.uri;
    let own = ["", "-updates", "-backports"].map(|end| format!("{codename}{end}"));
    let mut all: Vec<Source> = own.iter().map(|suite| (mirror, suite)).map(pair).collect();
    let kernels = KERNELS.map(str::to_owned);
    all.extend(kernels.iter().filter(|suite| !own.contains(suite)).map(|suite| (mirror, suite)).map(pair));
    let security = format!("{codename}-security");
    all.extend(configured.iter().find(|source| source.suite == security).cloned());
    let option = if keyring { format!("[signed-by={KEYRING}] ") } else { String::new() };
    Some(all.iter().map(|source| format!("deb {option}{} {} main\n", source.uri, source.suite)).collect())
}

fn pair((uri, suite): (&String, &String)) -> Source {
    Source { uri: uri.clone(), suite: suite.clone() }
}

/// The names behind `Depends:` in what apt-cache prints.
fn depended(output: &str) -> Vec<String> {
    let lines =
        output.lines().filter_map(|line| line.trim_start_matches([' ', '|']).strip_prefix("Depends: "));
    lines.map(str::to_owned).collect()
}

/// The line of apt's that says there is no way to the mirror, if it has failed for that.
fn unreachable(output: &str) -> Option<&str> {
    const SIGNS: [&str; 8] = [
        "Could not resolve",
        "Temporary failure resolving",
        "Could not connect",
        "Unable to connect",
        "Connection failed",
        "Connection timed out",
        "Cannot initiate the connection",
        "Network is unreachable",
    ];
    output.lines().map(str::trim).find(|line| SIGNS.iter().any(|sign| line.contains(sign)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release() {
        let text = "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nVERSION_CODENAME=bookworm\nID=debian\n";
        assert_eq!(debian(text).as_deref(), Some("bookworm"));
        assert_eq!(debian("ID=ubuntu\nVERSION_CODENAME=noble\n"), None);
        assert_eq!(debian("ID=debian\n"), None);
        assert_eq!(debian(""), None);
    }

    #[test]
    fn sources_are_on_the_mirror_of_the_machine() {
        let targets = "http://m.example/debian/ bookworm\nhttp://m.example/debian/ bookworm-updates\n\
                       http://s.example/sec/ bookworm-security\nhttp://x.example/ other\n";
        let text = sources("bookworm", &configured(targets), false).unwrap();
        assert_eq!(
            text,
            "deb http://m.example/debian/ bookworm main\ndeb http://m.example/debian/ bookworm-updates main\n\
             deb http://m.example/debian/ bookworm-backports main\ndeb http://m.example/debian/ trixie-backports main\n\
             deb http://s.example/sec/ bookworm-security main\n"
        );
        let trixie = sources("trixie", &configured("http://m.example/ trixie\n"), true).unwrap();
        assert_eq!(trixie.matches("trixie-backports").count(), 1);
        assert_eq!(trixie.matches("[signed-by=/usr/").count(), 4);
        assert_eq!(sources("bookworm", &configured("http://x.example/ other\n"), true), None);
    }

    #[test]
    fn dependencies() {
        let output = "linux-image-7.3.4+deb13-amd64\n  PreDepends: linux-base\n |Depends: dracut\n  Depends: <virtual>\n    dracut\n\
                      \x20 Depends: linux-modules-7.3.4+deb13-amd64\n  Breaks: fwupdate\n";
        assert_eq!(depended(output), ["dracut", "<virtual>", "linux-modules-7.3.4+deb13-amd64"]);
        assert!(depended("N: No packages found\n").is_empty());
    }

    #[test]
    fn no_network_is_told_from_what_is_wrong() {
        let output =
            "Err:1 http://m.example x\n  Could not connect to m.example:80 (192.0.2.1)\nE: Some failed\n";
        assert_eq!(unreachable(output), Some("Could not connect to m.example:80 (192.0.2.1)"));
        assert!(unreachable("W: Failed to fetch x  Temporary failure resolving 'm.example'\n").is_some());
        assert!(unreachable("E: Unable to locate package nonesuch\n").is_none());
        assert!(unreachable("E: Failed to fetch http://m.example/x  404  Not Found\n").is_none());
    }
}
