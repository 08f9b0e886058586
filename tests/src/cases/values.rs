//! Values of every kind round-trip, as channels and as pending writes.

use checkpoint_core::{Bytes, ChannelValue, Checkpoint, CheckpointConfig, ErrorKind, TypedBytes, Value};

use crate::case::Ctx;
use crate::fixture::{
    Done, bytes, checkpoint, encode, list, map, put, read, snapshot, triples, value, write,
};

cases!("values";
    scalars,
    floats,
    blobs,
    extensions_byte_for_byte,
    delta_snapshots,
    values_that_may_be_rejected,
    values_have_one_canonical_form,
    deep_nesting,
    many_channels,
    empty_checkpoint,
    a_hundred_megabytes,
);

/// Stores each value as a channel and as a pending write, reads both, and compares.
async fn check(ctx: &Ctx, values: &[(&str, ChannelValue)]) -> Done {
    let made = checkpoint(values);
    let stored = put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &made).await?;
    write(ctx.saver(), &stored, "task", values).await?;
    let tuple = read(ctx.saver(), &stored).await?;
    ensure_eq!(tuple.checkpoint.channel_values.len(), values.len(), "number of values");
    for (channel, expected) in values {
        ensure_eq!(&value(&tuple, channel)?, expected, "channel {channel}");
    }
    let expected: Vec<_> = values.iter().map(|(channel, value)| ("task", *channel, value)).collect();
    ensure_eq!(triples(&tuple.pending_writes), expected, "writes");
    Ok(())
}

async fn scalars(ctx: Ctx) -> Done {
    let values = [
        ("null", ChannelValue::Null),
        ("true", true.into()),
        ("false", false.into()),
        ("zero", 0.into()),
        ("one", 1.into()),
        ("negative", (-33).into()),
        ("max", i64::MAX.into()),
        ("min", i64::MIN.into()),
        ("past 2^53", 9_007_199_254_740_993_i64.into()),
        ("empty", "".into()),
        ("text", "hello".into()),
        ("unicode", "世界 🦀 e\u{301}".into()),
        ("quotes", "\"'\\`".into()),
        ("control", "\u{1}\t\r\n\u{7f}\u{2028}".into()),
        ("looks like a number", "1".into()),
        ("looks like null", "null".into()),
        ("long", "x".repeat(70_000).into()),
    ];
    check(&ctx, &values).await
}

async fn floats(ctx: Ctx) -> Done {
    let numbers =
        [0.0, -0.0, 1.0, -1.5, 0.1, 1e-7, 5e-324, f64::MIN_POSITIVE, 1e15, 123_456.789, f64::EPSILON];
    let values: Vec<_> =
        numbers.iter().map(|number| (format!("{number:e}"), ChannelValue::Float(*number))).collect();
    let values: Vec<_> = values.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    check(&ctx, &values).await?;
    // JSON turns large whole doubles into integers of the same value.
    for number in [1e16, -1e18, 1e300, f64::MAX] {
        let made = checkpoint(&[("n", number.into())]);
        let stored = put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &made).await?;
        let tuple = read(ctx.saver(), &stored).await?;
        let found: f64 = value(&tuple, "n")?.decode()?;
        ensure_eq!(found.to_bits(), number.to_bits(), "{number:e}");
    }
    Ok(())
}

async fn blobs(ctx: Ctx) -> Done {
    let odd = Value::Array(vec![
        Value::Float(f64::NAN),
        Value::Float(f64::INFINITY),
        Value::Float(f64::NEG_INFINITY),
        Value::Float(-0.0),
        "with \0 inside".into(),
        Value::Bin(Bytes::from_static(b"\0\xff")),
        u64::MAX.into(),
        Value::Nil,
    ]);
    let keys = Value::Map(vec![
        (1.into(), "int".into()),
        (true.into(), "bool".into()),
        (Value::Nil, "null".into()),
        (1.5.into(), "float".into()),
        (Value::Bin(Bytes::from_static(b"k")), "bytes".into()),
        (list(&[1, 2]), "list".into()),
    ]);
    let values = [
        ("empty list", encode(&list(&[]))?),
        ("empty map", encode(&map(&[]))?),
        ("list", encode(&list(&[1, -1, i64::MAX]))?),
        ("map", encode(&map(&[("b", 1.into()), ("a", map(&[("deep", list(&[1]))]))]))?),
        ("odd", encode(&odd)?),
        ("keys", encode(&keys)?),
        ("no bytes", bytes(Bytes::new())),
        ("bytes", bytes((0..=u8::MAX).collect::<Vec<_>>())),
        ("u64", encode(&u64::MAX.into())?),
        ("past i64", encode(&(i64::MAX.cast_unsigned() + 1).into())?),
        ("long list", encode(&list(&(0..70_000).collect::<Vec<_>>()))?),
        ("the marker of a snapshot", true.into()),
    ];
    check(&ctx, &values).await
}

async fn extensions_byte_for_byte(ctx: Ctx) -> Done {
    let mut values = Vec::new();
    for code in [0, 1, 2, 3, 4, 5, 6, 8, 42, 127, -1, -128] {
        for payload in [&b""[..], b"\xc1 no MessagePack", b"\x93\xa1a\xa1b\xc0", &[0; 300]] {
            let name = format!("ext {code} of {} bytes", payload.len());
            values.push((name, encode(&Value::Ext(code, Bytes::copy_from_slice(payload)))?));
        }
    }
    let inside = Value::Array(vec![
        Value::Ext(5, Bytes::from_static(b"\x01")),
        map(&[("k", Value::Ext(99, Bytes::new()))]),
    ]);
    values.push(("inside a list".into(), encode(&inside)?));
    // Encodings that are longer than necessary are kept, too.
    let wide = TypedBytes::msgpack(&b"\xdd\x00\x00\x00\x02\xd3\x00\x00\x00\x00\x00\x00\x00\x01\xd9\x01a"[..]);
    values.push(("wide forms".into(), wide.into()));
    let values: Vec<_> = values.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    check(&ctx, &values).await
}

async fn delta_snapshots(ctx: Ctx) -> Done {
    let values = [
        ("list", snapshot(&list(&[1, 2]))?),
        ("null", snapshot(&Value::Nil)?),
        ("nested", snapshot(&map(&[("k", Value::Ext(5, Bytes::from_static(b"\x01")))]))?),
    ];
    check(&ctx, &values).await
}

async fn values_that_may_be_rejected(ctx: Ctx) -> Done {
    let values = [
        ChannelValue::Float(f64::NAN),
        f64::INFINITY.into(),
        f64::NEG_INFINITY.into(),
        "with \0 inside".into(),
    ];
    for hard in values {
        let config = CheckpointConfig::new(ctx.thread());
        match put(ctx.saver(), &config, &checkpoint(&[("hard", hard.clone())])).await {
            Ok(stored) => {
                let found = value(&read(ctx.saver(), &stored).await?, "hard")?;
                // NaN is not equal to itself, its bytes are.
                ensure_eq!(found.to_msgpack()?, hard.to_msgpack()?, "value");
            }
            Err(error) => {
                ensure_eq!(error.kind(), ErrorKind::InvalidArgument, "kind of {error}");
                ensure_eq!(ctx.saver().get_tuple(&config).await?, None, "refused, but stored");
            }
        }
    }
    Ok(())
}

async fn values_have_one_canonical_form(ctx: Ctx) -> Done {
    let blob =
        |value: Value| Ok::<_, crate::Failure>(ChannelValue::Blob(TypedBytes::msgpack(value.to_msgpack()?)));
    let log = snapshot(&list(&[1]))?;
    let forms: [(&str, ChannelValue, ChannelValue); 7] = [
        ("int", blob(5.into())?, 5.into()),
        ("text", blob("text".into())?, "text".into()),
        ("null", blob(Value::Nil)?, ChannelValue::Null),
        ("null tag", TypedBytes::new("null", Bytes::new()).into(), ChannelValue::Null),
        ("bytes", blob(Value::Bin(Bytes::from_static(b"b")))?, bytes(&b"b"[..])),
        ("bool", blob(true.into())?, true.into()),
        ("snapshot", ChannelValue::Blob(log.to_typed()?), log),
    ];
    let made = forms
        .iter()
        .fold(Checkpoint::new(0), |made, (channel, given, _)| made.with_channel(*channel, given.clone(), 1));
    let stored = put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &made).await?;
    let writes: Vec<_> = forms.iter().map(|(channel, given, _)| (*channel, given.clone())).collect();
    write(ctx.saver(), &stored, "task", &writes).await?;
    let tuple = read(ctx.saver(), &stored).await?;
    for (channel, _, expected) in &forms {
        ensure_eq!(&value(&tuple, channel)?, expected, "channel {channel}");
    }
    let expected: Vec<_> = forms.iter().map(|(channel, _, expected)| ("task", *channel, expected)).collect();
    ensure_eq!(triples(&tuple.pending_writes), expected, "writes");
    Ok(())
}

async fn deep_nesting(ctx: Ctx) -> Done {
    let deep = (0..200).fold(list(&[1]), |inner, _| Value::Array(vec![inner]));
    check(&ctx, &[("deep", encode(&deep)?)]).await
}

async fn many_channels(ctx: Ctx) -> Done {
    let names: Vec<_> = (0..600_i64).map(|at| (at, format!("channel {at}"))).collect();
    let mut values = Vec::new();
    for (at, name) in &names {
        values.push((name.as_str(), if at % 2 == 0 { (*at).into() } else { encode(&list(&[*at]))? }));
    }
    check(&ctx, &values).await
}

async fn empty_checkpoint(ctx: Ctx) -> Done {
    let made = checkpoint(&[]);
    let stored = put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &made).await?;
    ensure_eq!(read(ctx.saver(), &stored).await?.checkpoint, made, "checkpoint");
    Ok(())
}

async fn a_hundred_megabytes(ctx: Ctx) -> Done {
    let mut data = vec![0_u8; 100 << 20];
    data.iter_mut().zip((0_u8..=250).cycle()).for_each(|(byte, at)| *byte = at);
    let data = Bytes::from(data);
    let stored =
        put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &checkpoint(&[("big", bytes(data.clone()))]))
            .await?;
    let ChannelValue::Blob(found) = value(&read(ctx.saver(), &stored).await?, "big")? else {
        return Err(crate::Failure::new("the value is not a blob"));
    };
    ensure!(found.tag == "bytes" && found.data == data, "the value differs");
    drop(found);
    write(ctx.saver(), &stored, "task", &[("big", bytes(data.clone()))]).await?;
    for write in read(ctx.saver(), &stored).await?.pending_writes {
        ensure!(matches!(&write.value, ChannelValue::Blob(blob) if blob.data == data), "the write differs");
    }
    Ok(())
}
