//! The table of errors, row by row.

use testkit::Role;
use ucp::wire::handle::Handle;
use ucp::{Context, MemMap, Status};
use ucs::config::Env;

use super::roles::{
    Actor, BY_DEVICE, FILL, NEARBY, REMOTE, SLOT, TOKEN, WAYS, assert_each_says, context, context_by,
    mkey_offset, repaired, status_of_gone, with_keys, words_of_revoked,
};

pub fn bytes_of_the_wire_arrive_both_ways() {
    let shm = "shm: descriptor passed over the exporter's service socket";
    let cma = "cma: process_vm_readv and process_vm_writev";
    let not_needed = "cma: no: not needed: 4096 bytes take ";
    let off = |name: &str| format!("{name}: no: not allowed by UCX_TLS");
    let nearby = "verbs: registered in this process's protection domain";
    let [no_self, no_shm, no_cma] = ["self", "shm", "cma"].map(off);
    let ways = if BY_DEVICE {
        vec![
            (NEARBY, [no_shm.as_str(), &no_cma, nearby]),
            (REMOTE, [&no_shm, &no_cma, "verbs: connected with"]),
        ]
    } else {
        vec![
            ("mm", [no_self.as_str(), shm, &no_cma]),
            ("cma", [&no_self, &no_shm, cma]),
            ("all", ["self: no: offered for ", shm, not_needed]),
        ]
    };
    for (tls, said) in ways {
        let (mut host, mut dpu) = (Actor::host(1 << 20), Actor::dpu_by(tls));
        let handle = host.export();
        let how = dpu.import(&handle).text();
        assert!(said.iter().all(|said| how.contains(said)), "{tls}: {how}");
        assert_eq!(dpu.read(0, 1 << 20).ok(), vec![FILL; 1 << 20]);
        dpu.write(12_345, b"from the DPU").ok();
        assert_eq!(host.read(12_345, 12).ok(), b"from the DPU");
        host.write(77, b"from the host").ok();
        assert_eq!(dpu.read(77, 13).ok(), b"from the host");
    }
}

pub fn truncated_at_every_byte() {
    let mut host = Actor::host(4096);
    let handle = host.export();
    let ctx = context();
    for len in 0..handle.len() {
        let error = ctx.mem_import(&handle[..len]).unwrap_err();
        assert_eq!(error.status(), Status::InvalidHandle, "{len} bytes: {error}");
        let text = error.to_string();
        assert!(text.contains("it ends too early"), "{len} bytes: {text}");
    }
    ctx.mem_import(&handle).unwrap();
}

pub fn trailing_bytes() {
    let mut host = Actor::host(4096);
    let mut handle = host.export();
    let len = handle.len();
    handle.push(0);
    let error = context().mem_import(&handle).unwrap_err();
    assert_eq!(error.to_string(), format!("not a valid handle: at byte {len}: 1 bytes follow the end"));
}

pub fn not_a_handle() {
    let ctx = context();
    let cases: [(&[u8], &str); 3] = [
        (b"", "not a valid handle: at byte 0: it ends too early: 4 more bytes are needed"),
        (
            b"GET / HTTP/1.1\r\n\r\n",
            "not a valid handle: at byte 0: it does not begin with \"RXMH\": this is no packed memory handle",
        ),
        (
            b"RXMH\x02\x00\x48\x00\x48\x00\x00\x00",
            "not a valid handle: at byte 4: version 2 is not known here, which is version 1",
        ),
    ];
    for (bytes, expected) in cases {
        let error = ctx.mem_import(bytes).unwrap_err();
        assert_eq!((error.to_string().as_str(), error.status()), (expected, Status::InvalidHandle));
        assert_eq!(error.remedy(), "pass on exactly the bytes that memh_pack gave");
    }
    let long = vec![0; (64 << 10) + 1];
    let text = ctx.mem_import(&long).unwrap_err().to_string();
    assert_eq!(
        text,
        "not a valid handle: at byte 65536: 65537 bytes are more than the 65536 a handle can have"
    );
}

pub fn wrong_token() {
    for (tls, components) in WAYS {
        let (mut host, mut dpu) = (Actor::host(4096), Actor::dpu_by(tls));
        let handle = host.export();
        for bit in [0, 64, 127] {
            let wrong = with_keys(&handle, components, |key| key[TOKEN + bit / 8] ^= 1 << (bit % 8));
            let text = dpu.import(&wrong).err(Status::AccessDenied);
            assert_each_says(components, &text, "the exporter refuses: the token is wrong");
        }
        dpu.import(&handle).ok();
        // Another export's token is no better.
        let other = host.export();
        let token = mkey_offset(&other, components[0]) + TOKEN;
        let token = &other[token..token + 16];
        let mixed = with_keys(&handle, components, |key| key[TOKEN..TOKEN + 16].copy_from_slice(token));
        dpu.import(&mixed).err(Status::AccessDenied);
    }
}

/// Each key is for itself: where one has a wrong token, the other is as good as before.
pub fn wrong_token_in_one_of_two_keys() {
    let (mut host, mut dpu) = (Actor::host(4096), Actor::dpu());
    let handle = host.export();
    let wrong = |component| with_keys(&handle, &[component], |key| key[TOKEN] ^= 1);
    let how = dpu.import(&wrong(2)).text();
    assert_each_says(&[2], &how, "the exporter refuses: the token is wrong");
    assert!(how.contains("cma: process_vm_readv and process_vm_writev"), "{how}");
    assert_eq!(dpu.read(0, 8).ok(), [FILL; 8]);
    let how = dpu.import(&wrong(3)).text();
    assert!(how.contains("shm: descriptor passed over"), "{how}");
    assert_eq!(dpu.read(0, 8).ok(), [FILL; 8]);
}

pub fn missing_token() {
    for (tls, components) in WAYS {
        let (mut host, mut dpu) = (Actor::host(4096), Actor::dpu_by(tls));
        let handle = with_keys(&host.export(), components, |key| key[TOKEN..TOKEN + 16].fill(0));
        dpu.import(&handle).err(Status::AccessDenied);
    }
}

fn another_context(components: &[u16], unknown: Status) -> Status {
    if components.contains(&2) { Status::InvalidHandle } else { unknown }
}

pub fn forged_fields() {
    for (tls, components) in WAYS {
        let (mut host, mut dpu) = (Actor::host(8192), Actor::dpu_by(tls));
        let handle = host.export();
        // Address, length, epoch: the token is right, the rest is not.
        for (offset, value) in [(16, 4096_u64), (24, 4096), (56, 3)] {
            let mut forged = handle.clone();
            forged[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
            let text = dpu.import(&repaired(forged)).err(Status::InvalidHandle);
            let said = "the handle does not describe the export whose token it carries";
            assert_each_says(components, &text, said);
        }
        // Another registration, another context: there is no such export. The key of shm tells which context it is of. Of who does not know
        // the token nothing is believed, where only the network tells who it is.
        let unknown = if tls == REMOTE { Status::Unreachable } else { Status::Stale };
        for (offset, expected) in [(48, unknown), (32, another_context(components, unknown))] {
            let mut forged = handle.clone();
            forged[offset] ^= 0x55;
            dpu.import(&repaired(forged)).err(expected);
        }
        // A line of the table that is another's, and one that is none.
        for slot in [2_u32, 70_000] {
            let slot = slot.to_le_bytes();
            let forged = with_keys(&handle, components, |key| key[SLOT..SLOT + 4].copy_from_slice(&slot));
            dpu.import(&forged).err(Status::Stale);
        }
    }
}

pub fn other_boot() {
    for (tls, components) in WAYS {
        let (mut host, mut dpu) = (Actor::host(4096), Actor::dpu_by(tls));
        let mut handle = host.export();
        for component in components {
            let at = mkey_offset(&handle, *component) - 16;
            handle[at] ^= 1;
        }
        let text = dpu.import(&repaired(handle)).err(Status::Unreachable);
        assert!(text.contains("the exporter offers self ("), "{text}");
        assert_each_says(components, &text, "offered for ");
        assert!(text.contains("run both sides on one machine"), "{text}");
    }
}

pub fn revoked() {
    for (tls, components) in WAYS {
        let (mut host, mut dpu) = (Actor::host(4096), Actor::dpu_by(tls));
        let handle = host.export();
        dpu.import(&handle).ok();
        host.ask("revoke 0").ok();
        let text = dpu.read(0, 8).err(Status::Stale);
        assert_eq!(text, "stale after 0 bytes: the export was revoked or dropped");
        dpu.write(0, b"late").err(Status::Stale);
        let text = dpu.import(&handle).err(Status::Stale);
        assert_each_says(components, &text, &format!("stale: {}", words_of_revoked(tls)));
        assert_eq!(host.read(0, 4).ok(), [FILL; 4]);
        // A new export of the same region is another one: the old handle stays stale.
        let newer = host.export();
        dpu.import(&newer).ok();
        dpu.read(0, 8).ok();
        dpu.import(&handle).err(Status::Stale);
    }
}

pub fn revoked_twice() {
    let mut host = Actor::host(4096);
    host.export();
    host.ask("revoke 0").ok();
    host.ask("revoke 0").ok();
}

pub fn region_dropped() {
    for (tls, _) in WAYS {
        let (mut host, mut dpu) = (Actor::host(4096), Actor::dpu_by(tls));
        let handle = host.export();
        dpu.import(&handle).ok();
        host.ask("drop-region").ok();
        dpu.read(0, 8).err(Status::Stale);
        dpu.write(0, b"late").err(Status::Stale);
        dpu.import(&handle).err(Status::Stale);
    }
}

pub fn context_dropped() {
    for (tls, components) in WAYS {
        let (mut host, mut dpu) = (Actor::host(4096), Actor::dpu_by(tls));
        let handle = host.export();
        dpu.import(&handle).ok();
        host.ask("drop-context").ok();
        dpu.read(0, 8).err(Status::Stale);
        let text = dpu.import(&handle).err(status_of_gone(tls));
        if tls != REMOTE {
            let said = "stale: the exporting context is gone: nobody listens on its service socket";
            assert_each_says(components, &text, said);
        }
        // Nor does one who has never been connected reach it.
        Actor::dpu_by(tls).import(&handle).err(status_of_gone(tls));
    }
}

pub fn one_of_two_exports_revoked() {
    for (tls, _) in WAYS {
        let (mut host, mut dpu) = (Actor::host(4096), Actor::dpu_by(tls));
        let (first, second) = (host.export(), host.export());
        assert_ne!(first, second);
        dpu.import(&first).ok();
        let mut other = Actor::dpu_by(tls);
        other.import(&second).ok();
        host.ask("revoke 0").ok();
        dpu.read(0, 8).err(Status::Stale);
        assert_eq!(other.read(0, 8).ok(), [FILL; 8]);
    }
}

pub fn no_exporting_transport() {
    let ctx = context_by("mm");
    let error = ctx.mem_map(MemMap::buffer(vec![0_u8; 10]).exported()).unwrap_err();
    assert_eq!(error.status(), Status::Unsupported);
    assert_eq!(
        error.to_string(),
        "exported(): no transport in use can export it: self: no: not allowed by UCX_TLS; shm: no: an owned buffer: shm can \
         only give away memory that it allocated: use MemMap::allocate; cma: no: not allowed by UCX_TLS; verbs: no: not \
         allowed by UCX_TLS"
    );
    // Without the hint, it is found at the pack.
    let region = ctx.mem_map(MemMap::buffer(vec![0_u8; 10])).unwrap();
    let error = region.memh_pack().unwrap_err();
    assert_eq!(error.status(), Status::Unsupported);
    assert_eq!(error.remedy(), "use memory of MemMap::allocate, or allow more transports in UCX_TLS");
    // In C UCX, "shm" names all that reaches memory of this machine: cma, which exports any memory, is among it.
    context_by("shm").mem_map(MemMap::buffer(vec![0_u8; 10]).exported()).unwrap().memh_pack().unwrap();
}

pub fn feature_missing() {
    let ctx = Context::builder().build().unwrap();
    assert_eq!(ctx.mem_map(MemMap::allocate(10).exported()).unwrap_err().status(), Status::InvalidParam);
    let region = ctx.mem_map(MemMap::allocate(10)).unwrap();
    let error = region.memh_pack().unwrap_err();
    assert_eq!(error.to_string(), "the context was made without Features::EXPORTED_MEMH");
    assert_eq!(error.remedy(), "make the context with features(Features::EXPORTED_MEMH)");
    assert_eq!(ctx.mem_import(b"").unwrap_err().status(), Status::InvalidParam);
}

pub fn zero_length() {
    for (tls, _) in WAYS {
        let (mut host, mut dpu) = (Actor::host(0), Actor::dpu_by(tls));
        let handle = host.export();
        let content = Handle::decode(&handle, |_| true).unwrap();
        assert_eq!((content.length, content.registration_id, content.entries.len()), (0, 0, 0));
        dpu.import(&handle).ok();
        assert_eq!(dpu.read(0, 0).ok(), b"");
        dpu.read(0, 1).err(Status::OutOfRange);
        dpu.write(0, b"x").err(Status::OutOfRange);
        host.read(0, 1).err(Status::OutOfRange);
        host.ask("revoke 0").ok();
        // The dummy of an exporter that is gone is as good: it names nothing.
        host.0.kill();
        dpu.import(&handle).ok();
    }
}

pub fn out_of_range() {
    for (tls, components) in WAYS {
        let (mut host, mut dpu) = (Actor::host(4096), Actor::dpu_by(tls));
        dpu.import(&host.export()).ok();
        assert_eq!(
            dpu.read(4090, 7).err(Status::OutOfRange),
            "7 bytes at offset 4090 do not lie within 4096 bytes"
        );
        dpu.read(u64::MAX, 1).err(Status::OutOfRange);
        dpu.write(4096, b"x").err(Status::OutOfRange);
        if components.contains(&2) {
            dpu.ask("view-read 1 4096").err(Status::OutOfRange);
        }
        assert_eq!(dpu.read(4096, 0).ok(), b"");
        dpu.read(4097, 0).err(Status::OutOfRange);
    }
}

pub fn read_only_is_refused() {
    for (tls, components) in WAYS {
        let (mut host, mut dpu) = (Actor::read_only_host(8192), Actor::dpu_by(tls));
        dpu.import(&host.export()).ok();
        assert_eq!(dpu.read(0, 8).ok(), [FILL; 8]);
        let text = dpu.write(0, b"no").err(Status::AccessDenied);
        assert_eq!(text, "access denied after 0 bytes: the region was exported read-only");
        if components.contains(&2) {
            dpu.ask_with("view-write 0", b"no").err(Status::AccessDenied);
        }
        assert_eq!(host.read(0, 2).ok(), [FILL; 2]);
        // The owner writes, and the importer sees it.
        host.write(0, b"the owner may").ok();
        assert_eq!(dpu.read(0, 13).ok(), b"the owner may");
    }
}

pub fn configuration() {
    let build = |name: &str, value: &str| Context::builder().ignore_env().set(name, value).build();
    let error = build("UCX_TLS", "shn").unwrap_err();
    assert_eq!(error.to_string(), "UCX_TLS: unknown in the list: shn");
    assert_eq!(
        error.remedy(),
        "did you mean shm? There are: cma, ib, mm, posix, rc, rc_v, rc_verbs, self, shm, sm, verbs"
    );
    let error = build("UCX_TLS", "^self,shm").unwrap_err();
    assert_eq!(error.status(), Status::NoDevice);
    assert_eq!(
        error.to_string(),
        "no transport can be used: self: no: not allowed by UCX_TLS; shm: no: not allowed by UCX_TLS; cma: no: not allowed by \
         UCX_TLS"
    );
    let error = build("UCX_IMPORT_TIMEOUT", "soon").unwrap_err();
    assert!(error.to_string().contains("UCX_IMPORT_TIMEOUT"), "{error}");
    assert_eq!(error.status(), Status::InvalidParam);
    let error = build("UCX_SHM_ATTACH", "socket,telepathy").unwrap_err();
    assert_eq!(error.to_string(), "UCX_SHM_ATTACH: unknown in the list: telepathy");
    // A transport of C UCX that is not here changes nothing; sm is shm and cma, as shm itself is; mm and posix are shm alone.
    let allowed = |env: &Env, tls: Option<&str>| {
        let builder = Context::builder().env(env.clone());
        let builder = tls.iter().fold(builder, |builder, tls| builder.set("UCX_TLS", *tls));
        let ctx = builder.build().unwrap();
        ctx.transports().map(|(component, _)| component.name()).collect::<Vec<_>>()
    };
    let env = Env::from_pairs([("UCX_TLS", "rc_mlx5,sm")]);
    assert_eq!(allowed(&env, None), ["shm", "cma"]);
    // A builder's setting wins.
    for (tls, expected) in [
        ("self", &["self"][..]),
        ("shm", &["shm", "cma"]),
        ("mm", &["shm"]),
        ("posix", &["shm"]),
        ("cma", &["cma"]),
        ("self,cma", &["self", "cma"]),
        ("^mm", &["self", "cma"]),
        ("^cma", &["self", "shm"]),
        ("all", &["self", "shm", "cma"]),
    ] {
        assert_eq!(allowed(&env, Some(tls)), expected, "{tls}");
    }
    // The environment of a process counts.
    let mut dpu = Actor(Role::new("roles::dpu").env("UCX_TLS", "self").start());
    let text = dpu.import(&Actor::host(4096).export()).err(Status::Unreachable);
    assert_each_says(&[2, 3], &text, "not allowed by UCX_TLS");
    assert!(text.contains("[allow one of the transports that the exporter offers in UCX_TLS]"), "{text}");
}

pub fn debug_shows_no_secret() {
    let ctx = context();
    let region = ctx.mem_map(MemMap::allocate(4096).exported()).unwrap();
    let handle = region.memh_pack().unwrap();
    let len = handle.as_bytes().len();
    assert_eq!(format!("{handle:?}"), format!("PackedMemh {{ export: 1, bytes: <{len} secret bytes> }}"));
    let imports = ["self", "mm", "cma"].map(|tls| {
        let importer = if tls == "self" { ctx.clone() } else { context_by(tls) };
        importer.mem_import(handle.as_bytes()).unwrap()
    });
    assert_eq!(imports.each_ref().map(ucp::ImportedRegion::transport), ["self", "shm", "cma"]);
    let at = mkey_offset(handle.as_bytes(), 1) + 8;
    let token = &handle.as_bytes()[at..at + 16];
    for (component, offset) in [(2, TOKEN), (3, TOKEN)] {
        let at = mkey_offset(handle.as_bytes(), component) + offset;
        assert_eq!(token, &handle.as_bytes()[at..at + 16], "an export has one token");
    }
    let printed = format!("{ctx:?} {region:?} {imports:?} {:?}", Handle::decode(handle.as_bytes(), |_| true));
    // Four bytes in a row: two of them stand in the printed uuids by chance once in some hundred runs.
    for window in token.windows(4) {
        let decimal = window.iter().map(u8::to_string).collect::<Vec<_>>().join(", ");
        let hex = window.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        for shown in [decimal, hex] {
            assert!(!printed.contains(&shown), "{shown} of the token in {printed}");
        }
    }
    assert!(printed.contains("<secret>"), "{printed}");
}
