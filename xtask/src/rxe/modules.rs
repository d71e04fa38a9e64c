//! Which kernel modules the guest loads, in which order.

/// What the tests want.
const WANTED: [&str; 5] = ["ib_uverbs", "rdma_rxe", "rdma_ucm", "veth", "sch_tbf"];
/// The cable between two guests.
pub(crate) const CABLE: [&str; 2] = ["virtio_pci", "virtio_net"];
/// What only some kernels have as a module, and rxe asks for by name when it starts: no file of dependencies says so.
const IF_THERE: [&str; 1] = ["crc32_generic"];

/// A line of `modules.dep(5)`: a module's path and the paths of what it needs.
type Line<'a> = (&'a str, Vec<&'a str>);

/// The paths of all modules to load, those of `more` too, each behind what it needs. `dep` is `modules.dep`, `builtin` the file of what is in the kernel
/// itself; the error is the module that is in neither.
pub(crate) fn order(dep: &str, builtin: &str, more: &[&str]) -> Result<Vec<String>, String> {
    let lines: Vec<Line<'_>> = dep
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(path, needs)| (path, needs.split_whitespace().collect()))
        .collect();
    let mut order = Vec::new();
    for name in IF_THERE.iter().chain(&WANTED).chain(more) {
        match lines.iter().find(|(path, _)| module(path) == *name) {
            Some((path, _)) => add(path, &lines, &mut order),
            None if IF_THERE.contains(name) || builtin.lines().any(|path| module(path) == *name) => {}
            None => return Err((*name).to_owned()),
        }
    }
    Ok(order)
}

/// The name of a module, from its path: the kernel takes `-` for `_`.
fn module(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file).replace('-', "_")
}

fn add(path: &str, lines: &[Line<'_>], order: &mut Vec<String>) {
    if order.iter().any(|known| known == path) {
        return;
    }
    // What a line names last needs nothing that it names before.
    for need in lines.iter().find(|line| line.0 == path).iter().flat_map(|line| line.1.iter().rev()) {
        add(need, lines, order);
    }
    order.push(path.to_owned());
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEP: &str = "k/veth.ko.xz:\nk/rdma_rxe.ko.xz: k/ib-uverbs.ko.xz k/udp_tunnel.ko.xz k/ib_core.ko.xz\n\
                       k/ib-uverbs.ko.xz: k/ib_core.ko.xz\nk/ib_core.ko.xz:\nk/udp_tunnel.ko.xz:\nk/other.ko.xz:\nk/sch_tbf.ko.xz:\n";

    #[test]
    fn needs_come_first_and_once() {
        let order = order(DEP, "kernel/x/rdma-ucm.ko\n", &["other"]).unwrap();
        assert_eq!(
            order,
            [
                "k/ib_core.ko.xz",
                "k/ib-uverbs.ko.xz",
                "k/udp_tunnel.ko.xz",
                "k/rdma_rxe.ko.xz",
                "k/veth.ko.xz",
                "k/sch_tbf.ko.xz",
                "k/other.ko.xz"
            ]
        );
    }

    #[test]
    fn a_module_that_is_nowhere() {
        assert_eq!(order(DEP, "", &[]), Err("rdma_ucm".to_owned()));
        assert_eq!(order("", "", &[]), Err("ib_uverbs".to_owned()));
    }

    #[test]
    fn one_that_only_some_kernels_have() {
        let dep = format!("{DEP}k/crc32_generic.ko:\nk/rdma_ucm.ko:\n");
        assert_eq!(order(&dep, "", &[]).unwrap()[0], "k/crc32_generic.ko");
    }
}
