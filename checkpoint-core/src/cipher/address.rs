//! Keys for the addresses of segments, derived from the keys of the ring; see [`crate::backend::segments`].

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::Zeroizing;

use super::AddressKeyName;

/// What is derived from the key of a cipher.
const KEY: &[u8] = b"checkpoint-core segments 1 ";
const ID: &[u8] = b"id";
const SALT: &[u8] = b"salt";
const THREAD: &[u8] = b"thread";

/// The key of a thread, for HMAC-SHA-256. Neither it nor its name reveals the key of the cipher.
pub(crate) struct AddressKey {
    name: AddressKeyName,
    key: Zeroizing<[u8; 32]>,
}

impl AddressKey {
    /// The key of a thread. `cipher` separates the keys of ciphers that share their bytes.
    pub(super) fn of_thread(cipher: &str, key: &[u8], thread_id: &str) -> Self {
        let key = Derivation::new(cipher, key);
        let salt = first(mac(&*key.derive(SALT), &[thread_id.as_bytes()]));
        key.named(AddressKeyName { id: key.id(), salt })
    }

    /// The key with this name, if it is derived from this key of a cipher.
    pub(super) fn named(cipher: &str, key: &[u8], name: AddressKeyName) -> Option<Self> {
        let key = Derivation::new(cipher, key);
        (key.id() == name.id).then(|| key.named(name))
    }

    pub(crate) const fn name(&self) -> AddressKeyName {
        self.name
    }

    /// Authenticates the concatenation of the parts.
    pub(crate) fn mac(&self, parts: &[&[u8]]) -> [u8; 32] {
        mac(&*self.key, parts)
    }
}

/// Derives keys from one key of a cipher.
struct Derivation(Zeroizing<[u8; 32]>);

impl Derivation {
    fn new(cipher: &str, key: &[u8]) -> Self {
        Self(Zeroizing::new(mac(key, &[KEY, cipher.as_bytes()])))
    }

    fn derive(&self, label: &[u8]) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(mac(&*self.0, &[label]))
    }

    fn id(&self) -> [u8; 4] {
        first(mac(&*self.0, &[ID]))
    }

    fn named(&self, name: AddressKeyName) -> AddressKey {
        AddressKey { name, key: Zeroizing::new(mac(&*self.derive(THREAD), &[&name.salt])) }
    }
}

fn first<const N: usize>(hash: [u8; 32]) -> [u8; N] {
    let mut out = [0; N];
    out.iter_mut().zip(hash).for_each(|(to, from)| *to = from);
    out
}

/// `key` has at most 64 bytes: HMAC pads it with zeros to a block.
fn mac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut block = Zeroizing::new([0; 64]);
    block.iter_mut().zip(key).for_each(|(to, from)| *to = *from);
    let mut mac = Hmac::<Sha256>::new(&(*block).into());
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_hmac_sha256() {
        // RFC 4231, test case 2.
        let found = mac(b"Jefe", &[b"what do ya want ", b"for nothing?"]);
        let wanted = [
            0x5bdc_c146_u32,
            0xbf60_754e_u32,
            0x6a04_2426_u32,
            0x0895_75c7_u32,
            0x5a00_3f08_u32,
            0x9d27_3983_u32,
            0x9dec_58b9_u32,
            0x64ec_3843_u32,
        ];
        assert_eq!(found.as_chunks::<4>().0, wanted.map(u32::to_be_bytes));
    }

    #[test]
    fn ciphers_and_threads_have_different_keys() {
        let keys = [("aes", "t"), ("aes256gcm", "t"), ("aes", "u")]
            .map(|(cipher, thread_id)| AddressKey::of_thread(cipher, &[1; 32], thread_id));
        for (at, key) in keys.iter().enumerate() {
            assert!(keys[..at].iter().all(|other| other.key != key.key && other.name != key.name));
            assert_ne!(*key.key, [1; 32]);
        }
        assert_eq!(keys[0].name.id, keys[2].name.id);
        let found = AddressKey::named("aes", &[1; 32], keys[2].name).unwrap();
        assert_eq!((found.name, found.key), (keys[2].name, keys[2].key.clone()));
        assert!(AddressKey::named("aes", &[2; 32], keys[2].name).is_none());
    }
}
