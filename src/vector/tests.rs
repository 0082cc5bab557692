use proptest::prelude::*;

use super::*;

fn text(array: &str) -> Result<Vector, VectorError> {
    Vector::from_text(Bytes::copy_from_slice(array.as_bytes()), None)
}

fn rendered(vector: &Vector) -> (String, String) {
    let (mut float, mut base64) = (Vec::new(), Vec::new());
    vector.write_float(&mut float);
    vector.write_base64(&mut base64);
    (String::from_utf8(float).expect("UTF-8"), String::from_utf8(base64).expect("UTF-8"))
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[track_caller]
fn check(array: &str, expected: Result<&[f32], VectorError>) {
    let found = text(array).map(|vector| bits(&vector.floats()));
    assert_eq!(found, expected.map(bits), "{array}");
}

#[test]
fn number_text_is_checked_and_read() {
    check("[1]", Ok(&[1.0]));
    check("[ 0.1 ,\n-0.0\t]", Ok(&[0.1, -0.0]));
    check(
        "[-0.012345678901234567,1e-45,3.4028235e38,1,0.30000001192092896,5e-324]",
        Ok(&[-0.012_345_679, 1e-45, f32::MAX, 1.0, 0.3, 0.0]),
    );
    check("[12345678.5E-3]", Ok(&[12_345.679]));
    check("[1E+2,100000000000000000000000000000000000000]", Ok(&[100.0, 1e38]));
    check("", Err(VectorError::NotAnArray));
    check("1", Err(VectorError::NotAnArray));
    check("[1", Err(VectorError::NotAnArray));
    check("[1]]", Err(VectorError::NotAnArray));
    check("[1 2]", Err(VectorError::NotAnArray));
    check("[]x", Err(VectorError::NotAnArray));
    check("[[1]]", Err(VectorError::NotANumber { element: 0 }));
    check("[1,]", Err(VectorError::NotANumber { element: 1 }));
    check("[1,null]", Err(VectorError::NotANumber { element: 1 }));
    check("[1,NaN]", Err(VectorError::NotANumber { element: 1 }));
    check("[\"1\"]", Err(VectorError::NotANumber { element: 0 }));
    for bad in ["[01]", "[-]", "[1.]", "[.5]", "[1e]", "[1e+]", "[+1]", "[--1]", "[0x1]"] {
        assert!(text(bad).is_err(), "{bad}");
    }
    check("[0,1e39]", Err(VectorError::NotFinite { element: 1 }));
    check("[1000000000000000000000000000000000000000]", Err(VectorError::NotFinite { element: 0 }));
    check("[1e999999999999]", Err(VectorError::NotFinite { element: 0 }));
    check("[ ]", Err(VectorError::Width { expected: None, found: 0 }));
}

#[test]
fn width_must_be_exact() {
    let array = Bytes::from_static(b"[1,2,3]");
    assert_eq!(Vector::from_text(array.clone(), Some(3)).map(|vector| vector.width()), Ok(3));
    let short = Vector::from_text(array, Some(4));
    assert_eq!(short, Err(VectorError::Width { expected: Some(4), found: 3 }));
    assert_eq!(Vector::from_base64(b"AACAPwAAAEA=", Some(2)).map(|vector| vector.floats()), Ok(vec![1.0, 2.0]));
    let wide = Vector::from_base64(b"AACAPwAAAEA=", Some(1));
    assert_eq!(wide, Err(VectorError::Width { expected: Some(1), found: 2 }));
}

#[test]
fn base64_is_checked() {
    assert_eq!(Vector::from_base64(b"AACAPwAAAEA", None).map(|vector| vector.floats()), Ok(vec![1.0, 2.0]));
    assert_eq!(Vector::from_base64(b"AACAPw==\n", None), Err(VectorError::NotBase64));
    assert_eq!(Vector::from_base64(b"AACA", None), Err(VectorError::NotBase64));
    assert_eq!(Vector::from_base64(b"*", None), Err(VectorError::NotBase64));
    assert_eq!(Vector::from_base64(b"", None), Err(VectorError::Width { expected: None, found: 0 }));
    let infinite = base64_simd::STANDARD.encode_to_string(f32::INFINITY.to_le_bytes());
    assert_eq!(Vector::from_base64(infinite.as_bytes(), None), Err(VectorError::NotFinite { element: 0 }));
}

#[test]
fn own_text_is_never_rewritten() {
    let vector = text("[ 1.10,\n-0.0, 1e-45 ]").expect("valid");
    assert_eq!(rendered(&vector).0, "[ 1.10,\n-0.0, 1e-45 ]");
    assert_eq!(rendered(&vector.detached()), rendered(&vector));
    assert_eq!(rendered(&text("[1.0,2.0]").expect("valid")).1, "AACAPwAAAEA=");
}

#[test]
fn floats_are_written_as_short_json_numbers() {
    let values = [0.0, -0.0, 1.0, 0.1, 1e-45, f32::MIN_POSITIVE, f32::MAX, f32::MIN, 16_777_216.0, 1e16, 1.5e-7];
    let (float, _) = rendered(&Vector::from_floats(&values).expect("finite"));
    let read: Vec<f64> = serde_json::from_str(&float).expect("JSON");
    assert_eq!(read.iter().map(|value| (*value as f32).to_bits()).collect::<Vec<_>>(), bits(&values), "{float}");
    assert!(float.starts_with("[0.0,-0.0,1.0,0.1,1e-45,"), "{float}");
}

#[test]
fn a_cut_vector_has_unit_length_again() {
    let vector = text("[3,4,12,0]").expect("valid");
    assert_eq!(vector.cut(2).map(|cut| cut.floats()), Ok(vec![0.6, 0.8]));
    assert_eq!(vector.cut(4).map(|cut| rendered(&cut).0), Ok("[3,4,12,0]".to_owned()), "own width: untouched");
    assert_eq!(vector.cut(5), Err(VectorError::Width { expected: Some(5), found: 4 }));
    assert_eq!(vector.cut(0), Err(VectorError::Width { expected: Some(0), found: 4 }));
    let zeros = text("[0,-0.0,1]").expect("valid").cut(2).map(|cut| bits(&cut.floats()));
    assert_eq!(zeros, Ok(bits(&[0.0, -0.0])));
    let tiny = text("[1e-45,0,1]").expect("valid").cut(2).map(|cut| cut.floats());
    assert_eq!(tiny, Ok(vec![1.0, 0.0]));
    let huge = text("[3e38,3e38,1]").expect("valid").cut(2).map(|cut| cut.floats());
    assert_eq!(huge, Ok(vec![0.707_106_77, 0.707_106_77]));
}

#[test]
fn debug_shows_no_numbers() {
    assert_eq!(format!("{:?}", text("[0.25]").expect("valid")), "Vector(text, width 1)");
}

fn finite() -> impl Strategy<Value = f32> {
    prop_oneof![any::<u32>().prop_map(f32::from_bits), -1.0_f32..1.0].prop_filter("finite", |value| value.is_finite())
}

proptest! {
    #[test]
    fn every_form_gives_the_same_values(values in proptest::collection::vec(finite(), 1..900)) {
        let vector = Vector::from_floats(&values).expect("finite");
        let (float, base64) = rendered(&vector);
        let from_text = text(&float).expect("own text");
        let from_base64 = Vector::from_base64(base64.as_bytes(), Some(vector.width())).expect("own base64");
        prop_assert_eq!(bits(&from_text.floats()), bits(&values));
        prop_assert_eq!(&from_base64, &vector);
        prop_assert_eq!(rendered(&from_text), (float, base64));
        for vector in [vector, from_text] {
            let stored = Bytes::from(vector.to_stored());
            prop_assert_eq!(Vector::from_stored(&stored, None), Ok(vector));
        }
    }

    #[test]
    fn accepts_what_serde_json_accepts(array in "\\[ ?[-+0-9.eE, ]{0,24}\\]|\\[-?[0-9]{1,42}(\\.[0-9]{1,20})?([eE][-+]?[0-9]{1,2})?\\]") {
        let reference = serde_json::from_str::<Vec<f64>>(&array).ok();
        // Beyond f32 but within f64 the two rightly differ.
        let usable = reference.filter(|values| !values.is_empty() && values.iter().all(|value| (*value as f32).is_finite()));
        let found = text(&array);
        prop_assert_eq!(found.as_ref().ok().map(|vector| vector.width() as usize), usable.as_ref().map(Vec::len));
        if let (Ok(vector), Some(values)) = (found, usable) {
            for (found, expected) in vector.floats().iter().zip(values) {
                let rounded = expected as f32;
                prop_assert!((found - rounded).abs() <= rounded.abs() * f32::EPSILON, "{} {}", found, expected);
            }
        }
    }

    #[test]
    fn cuts_have_unit_length_and_the_same_direction(values in proptest::collection::vec(-1.0_f32..1.0, 2..64), width in 1_u32..64) {
        let vector = Vector::from_floats(&values).expect("finite");
        prop_assume!(width < vector.width() && values[..width as usize].iter().any(|value| value.abs() > 1e-3));
        let cut = vector.cut(width).expect("allowed").floats();
        let norm: f64 = cut.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
        prop_assert!((norm - 1.0).abs() < 1e-6);
        let dot: f64 = cut.iter().zip(&values).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
        let prefix: f64 = values[..width as usize].iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
        prop_assert!((dot - prefix).abs() < 1e-6 * prefix.max(1.0));
    }
}
