//! What a memory domain can do.

use std::fmt;

use bitflags::bitflags;

use super::ComponentId;

bitflags! {
    /// Abilities of a memory domain (`UCT_MD_FLAG_*`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[doc(alias = "UCT_MD_FLAG_ALLOC")]
    pub struct MdFlags: u32 {
        /// Allocates memory.
        const ALLOC = 1 << 0;
        /// Registers memory that others allocated.
        const REG = 1 << 1;
        /// An attachment is a mapping: memory can be reached by load and store.
        const RKEY_PTR = 1 << 2;
        /// Remote access needs a key.
        const NEED_RKEY = 1 << 3;
        /// A key can be made invalid while its memory stays registered.
        const INVALIDATE = 1 << 4;
        /// Memory can be exported, and exported memory attached.
        const EXPORTED_MKEY = 1 << 5;
        /// Registrations name the address: they reach whatever is mapped there at the time of access.
        const VA_BOUND = 1 << 6;
        /// A revocation ends every access, also through views an importer holds.
        const REVOCABLE = 1 << 7;
        /// Operands of `put` and `get` must be registered: see [`Md::reg_local`](super::Md::reg_local).
        #[doc(alias = "UCT_MD_FLAG_NEED_MEMH")]
        const NEED_MEMH = 1 << 8;
        /// Atomic operations on attached memory: see [`Attachment::atomic`](super::Attachment::atomic).
        const ATOMICS = 1 << 9;
        /// The memory of a peer of an endpoint can be read by its addresses: see [`Md::peer_memory`](super::Md::peer_memory).
        const PEER_MEMORY = 1 << 10;
    }
}

bitflags! {
    /// Kinds of memory (`UCS_MEMORY_TYPE_*`), as a mask.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct MemTypes: u32 {
        /// The host's memory.
        const HOST = 1 << 0;
    }
}

/// A cost that grows with size: `base + per_byte × bytes`, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearCost {
    /// Seconds whatever the size.
    pub base: f64,
    /// Seconds per byte.
    pub per_byte: f64,
}

impl LinearCost {
    /// No cost.
    pub const ZERO: Self = Self { base: 0.0, per_byte: 0.0 };

    /// Seconds for `bytes`.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // costs are estimates
    pub fn at(&self, bytes: u64) -> f64 {
        self.base + self.per_byte * bytes as f64
    }
}

/// Where a memory domain's exported keys mean something: at most 255 bytes, compared by [`Md::can_attach`](super::Md::can_attach).
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct GlobalId(Vec<u8>);

impl GlobalId {
    /// Most bytes.
    pub const MAX: usize = 255;

    /// Takes at most [`GlobalId::MAX`] bytes; `None` for more.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        (bytes.len() <= Self::MAX).then(|| Self(bytes.to_vec()))
    }

    /// Its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<[u8; 16]> for GlobalId {
    fn from(bytes: [u8; 16]) -> Self {
        Self(bytes.to_vec())
    }
}

impl fmt::Display for GlobalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", ShortHex(&self.0))
    }
}

impl fmt::Debug for GlobalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GlobalId({self})")
    }
}

/// The first bytes in hexadecimal, enough to tell ids apart by eye.
struct ShortHex<'a>(&'a [u8]);

impl fmt::Display for ShortHex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0.iter().take(4) {
            write!(f, "{byte:02x}")?;
        }
        f.write_str(if self.0.len() > 4 { "…" } else { "" })
    }
}

/// Attributes of a memory domain (`uct_md_attr_t`).
#[derive(Clone, Debug)]
#[doc(alias = "uct_md_attr_t")]
pub struct MdAttr {
    /// The component it belongs to.
    pub component: ComponentId,
    /// Abilities.
    pub flags: MdFlags,
    /// Most bytes one allocation can have; 0 without [`MdFlags::ALLOC`].
    pub max_alloc: u64,
    /// Most bytes one registration can have.
    pub max_reg: u64,
    /// Registrations begin and end at multiples of this many bytes, a power of two.
    pub reg_alignment: usize,
    /// What a registration costs.
    pub reg_cost: LinearCost,
    /// What one access to attached memory costs: of two memory domains that reach it, the cheaper one is used.
    pub access_cost: LinearCost,
    /// Kinds of memory it allocates.
    pub alloc_mem_types: MemTypes,
    /// Kinds of memory it registers.
    pub reg_mem_types: MemTypes,
    /// Kinds of memory it accesses.
    pub access_mem_types: MemTypes,
    /// Bytes of a packed remote key; 0 where none is needed.
    pub rkey_packed_size: usize,
    /// Bytes of an exported memory key; 0 without [`MdFlags::EXPORTED_MKEY`].
    pub exported_mkey_packed_size: usize,
    /// Where exported keys mean something.
    pub global_id: GlobalId,
    /// CPUs near it, as a list in the form of `cpuset(7)`; empty: all are.
    pub local_cpus: String,
    /// What a user should know of it that its flags do not say: a sentence each.
    pub notes: Vec<String>,
}

/// One line of a transport's capability table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// What.
    pub name: &'static str,
    /// Whether the transport has it.
    pub supported: bool,
    /// What a user should know about it.
    pub note: &'static str,
}
