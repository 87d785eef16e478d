use std::hash::Hasher as _;

use super::*;

/// End of an entry in a test's block.
#[derive(Clone, Copy)]
enum Target {
    /// A chain begins.
    Begin(&'static str),
    /// To this place.
    To(usize),
    /// A verdict: -1 for drop, -2 for accept, -5 for return.
    Verdict(i32),
}

fn mk_entry(shape: Shape, packets: u8, matches: &[u8], target: Target) -> Vec<u8> {
    let mut data = vec![0; 32];
    let (name, payload): (&[u8], Vec<u8>) = match target {
        Target::Begin(chain) => (ERROR_TARGET, chain.as_bytes().to_vec()),
        Target::To(place) => (b"", i32::try_from(place).unwrap().to_ne_bytes().to_vec()),
        Target::Verdict(verdict) => (b"", verdict.to_ne_bytes().to_vec()),
    };
    data[..payload.len()].copy_from_slice(&payload);
    let mut bytes = vec![0; shape.length()];
    let target_offset = shape.length() + matches.len();
    let length = target_offset + TARGET_HEADER + data.len();
    let offsets = shape.offsets();
    bytes[offsets..offsets + 2]
        .copy_from_slice(&u16::try_from(target_offset).unwrap().to_ne_bytes());
    bytes[offsets + 2..offsets + 4].copy_from_slice(&u16::try_from(length).unwrap().to_ne_bytes());
    // The counters are the last two u64 before the matches.
    bytes[shape.length() - 16] = packets;
    bytes.extend(matches);
    let mut header = [0; TARGET_HEADER];
    header[TARGET_NAME..TARGET_NAME + name.len()].copy_from_slice(name);
    bytes.extend(header);
    bytes.extend(data);
    bytes
}

fn mk_block(shape: Shape, entries: &[Vec<u8>]) -> Block {
    let bytes = entries.concat();
    let mut info = Info::decode(&[0; Info::LENGTH]).unwrap();
    info.valid_hooks = 1 << 3;
    info.size = u32::try_from(bytes.len()).unwrap();
    Block::new(shape, info, bytes).unwrap()
}

/// OUTPUT with `before` rules of others and then a jump to a chain of ours with one rule, behind a
/// chain of others.
fn mk_table(shape: Shape, before: usize, packets: u8, rule: &[u8]) -> Block {
    let others = mk_entry(shape, packets, &[], Target::Verdict(-2));
    let length = others.len();
    // OUTPUT: others, jump, policy. Theirs: name, return. Ours: name, rule, return.
    let ours = (before + 2 + 2 + 1) * length;
    let mut entries = vec![others; before];
    entries.extend([
        mk_entry(shape, packets, &[], Target::To(ours)),
        mk_entry(shape, 0, &[], Target::Verdict(-2)),
        mk_entry(shape, 0, &[], Target::Begin("THEIRS")),
        mk_entry(shape, 0, &[], Target::Verdict(-5)),
        mk_entry(shape, 0, &[], Target::Begin("OURS")),
        mk_entry(shape, packets, rule, Target::Verdict(-1)),
        mk_entry(shape, 0, &[], Target::Verdict(-5)),
        mk_entry(shape, 0, &[], Target::Begin("ERROR")),
    ]);
    mk_block(shape, &entries)
}

fn hash(block: &Block) -> (u64, Vec<String>) {
    let mut hasher = DefaultHasher::new();
    block.hash_chain("OURS", &mut hasher).unwrap();
    let found = block.hash_jumps("OUTPUT", &["OURS"], &mut hasher).unwrap();
    (hasher.finish(), found)
}

#[test]
fn neither_counters_nor_rules_of_others_count() {
    for shape in [Shape::V4, Shape::V6] {
        let (first, found) = hash(&mk_table(shape, 0, 0, b"8 bytes!"));
        assert_eq!(found, ["OURS"]);
        let among_others = mk_table(shape, 3, 0, b"8 bytes!");
        assert_eq!(among_others.destinations("OUTPUT").unwrap(), ["OURS"]);
        assert!(among_others.destinations("THEIRS").unwrap().is_empty());
        assert_eq!(hash(&mk_table(shape, 0, 9, b"8 bytes!")).0, first, "counters");
        assert_eq!(hash(&mk_table(shape, 3, 0, b"8 bytes!")).0, first, "others' rules");
        assert_ne!(hash(&mk_table(shape, 0, 0, b"8 Bytes!")).0, first, "a rule of ours");
    }
}

#[test]
fn a_jump_that_is_gone_and_an_empty_chain_count() {
    let shape = Shape::V4;
    let verdict = |verdict| mk_entry(shape, 0, &[], Target::Verdict(verdict));
    let begin = |chain| mk_entry(shape, 0, &[], Target::Begin(chain));
    let length = verdict(0).len();
    let block = |first, rules: &[Vec<u8>]| {
        let entries = [&[first, verdict(-2), begin("OURS")], rules, &[begin("ERROR")]].concat();
        mk_block(shape, &entries)
    };
    let jump = || mk_entry(shape, 0, &[], Target::To(3 * length));
    let rules = [verdict(-1), verdict(-5)];
    let (whole, _) = hash(&block(jump(), &rules));
    let (without, found) = hash(&block(verdict(-5), &rules));
    assert!(without != whole && found.is_empty());
    assert_ne!(hash(&block(jump(), &rules[1..])).0, whole);

    let mut hasher = DefaultHasher::new();
    block(jump(), &rules).hash_chain("NONE", &mut hasher).unwrap();
    let mut other = DefaultHasher::new();
    block(jump(), &rules).hash_chain("OURS", &mut other).unwrap();
    assert_ne!(hasher.finish(), other.finish());
}

#[test]
fn what_is_cut_short_is_an_error() {
    let whole = mk_table(Shape::V4, 0, 0, b"").bytes;
    let info = Info::decode(&[0; Info::LENGTH]).unwrap();
    for length in [1, 91, 100, 175, whole.len() - 1] {
        assert!(Block::new(Shape::V4, info, whole[..length].to_vec()).is_err(), "{length}");
    }
    assert!(Info::decode(&[0; Info::LENGTH - 1]).is_err());
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic_and_to_an_end(
        info in proptest::collection::vec(proptest::prelude::any::<u8>(), Info::LENGTH),
        bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..400),
        changes in proptest::collection::vec(
            (proptest::prelude::any::<proptest::sample::Index>(), proptest::prelude::any::<u8>()),
            0..4,
        ),
    ) {
        let info = Info::decode(&info).unwrap();
        let mut nearly = mk_table(Shape::V6, 1, 1, b"8 bytes!").bytes;
        for (place, byte) in changes {
            let place = place.index(nearly.len());
            nearly[place] = byte;
        }
        for (shape, bytes) in
            [(Shape::V4, bytes.clone()), (Shape::V6, bytes), (Shape::V6, nearly)]
        {
            if let Ok(block) = Block::new(shape, info, bytes) {
                let mut hasher = DefaultHasher::new();
                for chain in ["OURS", "OUTPUT", "PREROUTING"] {
                    let _any = block.hash_chain(chain, &mut hasher);
                    let _any = block.hash_jumps(chain, &["OURS"], &mut hasher);
                    let _any = block.destinations(chain);
                }
            }
        }
    }
}
