//! Byte-crafted safetensors files, good and bad.

use super::super::testing::{Noise, SafetensorsFile, floats, with_header};
use super::*;
use crate::base::Code;

struct Case {
    folder: tempfile::TempDir,
}

impl Case {
    fn new() -> Self {
        Case { folder: tempfile::tempdir().unwrap() }
    }

    fn read(&self, bytes: &[u8]) -> Result<Vec<Tensor>> {
        let path = self.folder.path().join("model.safetensors");
        std::fs::write(&path, bytes).unwrap();
        read_header(&WeightFile::open(&path)?, 0)
    }

    /// The error, after checking that it is INVALID_MODEL and names the file.
    fn refused(&self, bytes: &[u8]) -> Error {
        let error = self.read(bytes).expect_err("the file must be refused");
        assert_eq!(error.code(), Code::InvalidModel, "{error}");
        assert!(error.detail().file.as_ref().unwrap().ends_with("model.safetensors"), "{error}");
        error
    }
}

fn good() -> Vec<u8> {
    SafetensorsFile::new()
        .tensor("first", "F32", &[2, 2], &floats(&[1.0, 2.0, 3.0, 4.0]))
        .tensor("empty", "I32", &[0, 7], &[])
        .tensor("scalar", "BF16", &[], &[1, 2])
        .tensor("last", "U8", &[5], &[1, 2, 3, 4, 5])
        .bytes()
}

#[test]
fn a_good_header_gives_its_tensors() {
    let tensors = Case::new().read(&good()).unwrap();
    let names: Vec<_> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["first", "empty", "scalar", "last"]);
    let data_start = good().len() as u64 - 23;
    assert_eq!(tensors[0].encoding, Encoding::Plain(ElementType::F32));
    assert_eq!((tensors[0].offset, tensors[0].bytes), (data_start, 16));
    assert_eq!(tensors[1].shape, [0, 7]);
    assert_eq!(tensors[2].elements(), 1);
    assert_eq!((tensors[3].offset, tensors[3].bytes), (data_start + 18, 5));
}

#[test]
fn order_in_the_header_padding_and_metadata_do_not_matter() {
    let header = r#"{"b":{"shape":[4],"dtype":"U8","data_offsets":[2,6]},"__metadata__":{"format":"mlx"},
        "a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}}   "#;
    let tensors = Case::new().read(&with_header(header, &[0; 6])).unwrap();
    assert_eq!(tensors.len(), 2);
    assert_eq!((tensors[0].name.as_str(), tensors[1].name.as_str()), ("a", "b"));
}

#[test]
fn known_types_without_an_array_type_are_listed_and_refused_on_use() {
    let header = r#"{"a":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}}"#;
    let tensors = Case::new().read(&with_header(header, &[0; 2])).unwrap();
    let error = tensors[0].check_usable().unwrap_err();
    assert_eq!(error.code(), Code::Unsupported);
    assert!(error.message().contains("F8_E4M3"));
    assert_eq!(error.detail().tensor.as_deref(), Some("a"));
}

#[test]
fn b17_a_declared_extent_that_the_bytes_do_not_have_is_refused() {
    let case = Case::new();
    for body in [
        r#""shape":[1000,1000],"data_offsets":[0,8]"#,
        r#""shape":[2],"data_offsets":[8,0]"#,
        r#""shape":[2],"data_offsets":[0]"#,
        r#""shape":[2],"data_offsets":[0,8,8]"#,
        r#""shape":[2],"data_offsets":[8,16]"#,
        r#""shape":[2],"data_offsets":[-8,0]"#,
        r#""shape":[-2],"data_offsets":[0,8]"#,
        r#""shape":[2.0],"data_offsets":[0,8]"#,
        r#""shape":["2"],"data_offsets":[0,8]"#,
        r#""shape":2,"data_offsets":[0,8]"#,
        r#""shape":null,"data_offsets":[0,8]"#,
        r#""data_offsets":[0,8]"#,
        r#""shape":[2]"#,
        r#""shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2],"data_offsets":[0,8]"#,
        // Products that wrap around to 8 bytes, or to none.
        r#""shape":[9223372036854775809,2],"data_offsets":[0,8]"#,
        r#""shape":[4294967296,4294967296],"data_offsets":[0,0]"#,
        r#""shape":[4611686018427387904],"data_offsets":[0,0]"#,
        r#""shape":[2],"data_offsets":[18446744073709551608,18446744073709551616]"#,
        r#""shape":[2],"data_offsets":[18446744073709551607,18446744073709551615]"#,
        r#""shape":[2],"shape":[2],"data_offsets":[0,8]"#,
    ] {
        let header = format!(r#"{{"a":{{"dtype":"F32",{body}}}}}"#);
        let error = case.refused(&with_header(&header, &[0; 8]));
        assert_eq!(error.detail().tensor.as_deref(), Some("a"), "{body}: {error}");
        assert!(error.detail().position.is_some(), "{body}");
    }
}

#[test]
fn b17_types_must_be_known_and_fill_whole_bytes() {
    let case = Case::new();
    for (dtype, shape) in [("F33", "[2]"), ("f32", "[2]"), ("", "[2]"), ("F4", "[15]")] {
        let header = format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,8]}}}}"#);
        let error = case.refused(&with_header(&header, &[0; 8]));
        assert_eq!(error.detail().tensor.as_deref(), Some("a"), "{dtype}");
    }
    let error = case.refused(&with_header(r#"{"a":{"dtype":5,"shape":[2],"data_offsets":[0,8]}}"#, &[0; 8]));
    assert!(error.message().contains("expected a string"), "{error}");
}

#[test]
fn tensors_must_cover_the_data_without_overlap() {
    let case = Case::new();
    let two = |first: &str, second: &str| {
        format!(
            r#"{{"a":{{"dtype":"U8","shape":[4],"data_offsets":{first}}},"b":{{"dtype":"U8","shape":[4],"data_offsets":{second}}}}}"#
        )
    };
    let overlap = case.refused(&with_header(&two("[0,4]", "[2,6]"), &[0; 8]));
    assert!(overlap.message().contains("overlaps"), "{overlap}");
    assert_eq!(overlap.detail().tensor.as_deref(), Some("b"));
    let same = case.refused(&with_header(&two("[0,4]", "[0,4]"), &[0; 4]));
    assert!(same.message().contains("overlaps"), "{same}");
    let hole = case.refused(&with_header(&two("[0,4]", "[5,9]"), &[0; 9]));
    assert!(hole.message().contains("hole"), "{hole}");
    let early_hole = case.refused(&with_header(&two("[1,5]", "[5,9]"), &[0; 9]));
    assert!(early_hole.message().contains("hole"), "{early_hole}");
    let trailing = case.refused(&with_header(&two("[0,4]", "[4,8]"), &[0; 9]));
    assert!(trailing.message().contains("describes"), "{trailing}");
}

#[test]
fn a_name_that_stands_there_twice_is_not_read_twice() {
    let entry = r#""a":{"dtype":"U8","shape":[4],"data_offsets":"#;
    let header = format!("{{{entry}[0,4]}},{entry}[4,8]}}}}");
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model.safetensors"), with_header(&header, &[0; 8])).unwrap();
    let error = super::super::WeightFiles::open_folder(folder.path()).unwrap_err();
    assert_eq!(error.code(), Code::InvalidModel);
    assert_eq!(error.detail().tensor.as_deref(), Some("a"));
    assert!(error.message().contains("second time"), "{error}");
}

#[test]
fn b18_a_truncated_file_is_refused_with_expected_and_actual_size() {
    let case = Case::new();
    let whole = good();
    let header_end = whole.len() - 23;
    for length in [whole.len() - 1, whole.len() - 3, header_end + 8, header_end, header_end / 2, 8, 7, 0] {
        let error = case.refused(&whole[..length]);
        assert!(error.message().contains(&format!("{length} bytes")), "{length}: {error}");
        if length >= header_end {
            assert!(error.detail().tensor.is_some(), "{length}: {error}");
            assert!(error.message().contains("truncated"), "{length}: {error}");
        }
    }
    let error = case.refused(&whole[..whole.len() - 1]);
    assert!(error.message().contains(&format!("byte {}", whole.len())), "{error}");
}

#[test]
fn b19_a_lying_header_length_is_refused() {
    let case = Case::new();
    for length in [u64::MAX, u64::MAX - 7, 1 << 63, 0, 1, 10, 4096, 101_000_000] {
        let mut bytes = good();
        bytes[..8].copy_from_slice(&length.to_le_bytes());
        case.refused(&bytes);
    }
}

#[test]
fn b19_a_body_that_is_no_table_of_tensors_is_refused_in_plain_words() {
    let case = Case::new();
    for body in
        ["[1,2,3]", "not json", "null", "\"text\"", "{ ", "{}{}", r#"{"a":1}"#, r#"{"__metadata__":{"a":1}}"#]
    {
        let error = case.refused(&with_header(body, &[]));
        assert!(error.message().contains("safetensors header"), "{error}");
        assert!(!error.message().contains("line"), "{error}");
        assert!(error.detail().position.unwrap() >= 8);
    }
    let error = case.refused(&with_header("{\n\n \"a\":{\"dtype\":\"U8\",\n!}}", &[]));
    assert_eq!(error.detail().position, Some(8 + 23));
    let mut invalid_utf8 = with_header(r#"{"aa":{}}"#, &[]);
    invalid_utf8[11] = 0xff;
    case.refused(&invalid_utf8);
    let nested = "[".repeat(10_000);
    case.refused(&with_header(&nested, &[]));
    case.refused(&with_header(
        &format!(r#"{{"a":{{"x":{nested},"dtype":"U8","shape":[0],"data_offsets":[0,0]}}}}"#),
        &[],
    ));
}

#[test]
fn b19_impostors_are_called_by_their_name() {
    let case = Case::new();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 270000000\n";
    let error = case.refused(pointer.as_bytes());
    assert!(error.message().contains("LFS pointer"), "{error}");
    for page in ["<!DOCTYPE html><html></html>", "\n  <html><body>Not found</body></html>"] {
        let error = case.refused(page.as_bytes());
        assert!(error.message().contains("web page"), "{error}");
    }
}

#[test]
fn a_length_that_looks_like_the_begin_of_a_page_is_a_length() {
    let case = Case::new();
    let entry = r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    for length in [0x3c, 0x0e3c, 0x3c09, 0x3c0a, 0x3c0c, 0x3c0d, 0x3c20, 0x3c_0a20] {
        let header = entry.to_owned() + &" ".repeat(length - entry.len());
        let tensors = case.read(&with_header(&header, &[7])).unwrap();
        assert_eq!((tensors.len(), tensors[0].offset), (1, 8 + length as u64), "{length:#x}");
    }
}

#[test]
fn damaged_headers_never_panic() {
    let case = Case::new();
    let whole = good();
    let mut noise = Noise(1);
    for round in 0..2000 {
        let mut bytes = whole.clone();
        for _ in 0..1 + noise.below(4) {
            let place = noise.below(bytes.len());
            bytes[place] = noise.next() as u8;
        }
        if round % 3 == 0 {
            bytes.truncate(noise.below(bytes.len() + 1));
        }
        if let Ok(tensors) = case.read(&bytes) {
            let total: u64 = tensors.iter().map(|tensor| tensor.bytes).sum();
            assert!(total <= bytes.len() as u64);
            for tensor in tensors {
                assert!(tensor.offset + tensor.bytes <= bytes.len() as u64);
            }
        }
    }
}

#[test]
fn names_in_messages_are_escaped_and_cut() {
    let long = format!("\\u001b[31m{}", "x".repeat(100_000));
    for header in [
        format!(r#"{{"{long}":{{"dtype":"F32","shape":[2],"data_offsets":[0,2]}}}}"#),
        format!(r#"{{"{long}":{{"dtype":"F99","shape":[2],"data_offsets":[0,2]}}}}"#),
        format!(r#"{{"a":{{"dtype":"{long}","shape":[2],"data_offsets":[0,2]}}}}"#),
    ] {
        let error = Case::new().refused(&with_header(&header, &[0; 2]));
        let path = error.detail().file.as_ref().unwrap().as_os_str().len();
        assert!(error.message().len() < path + 600, "{} bytes", error.message().len());
        assert!(!error.message().contains('\u{1b}'), "{error}");
    }
}

/// Headers that are large and cheap to write cost no more than their reading, and no memory beyond a few times it.
#[test]
fn b19_bombs_in_headers_are_refused_soon() {
    let many = |count: usize, body: &dyn Fn(usize) -> String| {
        let entries: Vec<String> = (0..count).map(body).collect();
        format!("{{{}}}", entries.join(","))
    };
    let empty = r#"{"dtype":"F32","shape":[0],"data_offsets":[0,0]}"#;
    let bombs = [
        format!("{{\"a\":{}", "[".repeat(20_000_000)),
        format!("{{\"a\":{}", "{\"b\":".repeat(4_000_000)),
        many(TENSORS_LIMIT + 1, &|index| format!("\"{index}\":{empty}")),
        format!("{{\"{}\":{empty},", "x".repeat(30_000_000)),
        format!("{{\"__metadata__\":{{\"k\":\"{}\"}},\"a\":1}}", "x".repeat(30_000_000)),
        format!("{{\"a\":{{\"shape\":[{}1]}}}}", "1,".repeat(10_000_000)),
    ];
    for bomb in bombs {
        let bytes = with_header(&bomb, &[]);
        let begin = std::time::Instant::now();
        let error = Case::new().refused(&bytes);
        // Ten times what an optimised build on a busy machine takes.
        assert!(begin.elapsed().as_secs() < 10, "{:?} for {}", begin.elapsed(), &bomb[..40]);
        assert!(error.message().len() < 2000, "the message is as large as the file");
        assert_eq!(error.code(), Code::InvalidModel);
    }
}
